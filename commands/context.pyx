# cython: language_level=3, boundscheck=False, wraparound=False
"""What a handler is given: the data, the time, the client, and where to record what it did.

Handlers take the time from `now_ms` and `steady_ms` and never from a clock, so a whole server runs
under fake ones. `server` is the outside as far as commands may see it (commands/outside.py has its protocol).
"""

from millstream.encoding cimport Slice
from millstream.storage.keyspace cimport Keyspace
from millstream.storage.stream cimport Stream


cdef class Session:
    """What a server remembers of one client between commands.

    `queue` holds the requests since MULTI (None outside a transaction), `queue_failed` says that
    one of them was refused; `watches` has (Database, state) for every watched (database number,
    key). `channels` and `patterns` are the subscriptions, in order. `reply_mode` is "on", "off", "skip" (CLIENT
    REPLY SKIP itself) or "skip-next".
    """

    def __init__(self, uint64_t id, str address="", str local_address="", uint64_t now_ms=0):
        self.id = id
        self.address = address
        self.local_address = local_address
        self.created_ms = now_ms
        self.last_active_ms = now_ms
        self.resp = 2
        self.name = b""
        self.lib_name = b""
        self.lib_version = b""
        self.last_command = None
        self.watches = {}
        self.channels = {}
        self.patterns = {}
        self.reply_mode = "on"

    cdef bint is_special(self) noexcept:
        """Whether this client's requests do not just run and answer."""
        return (self.queue is not None or self.reply_mode != "on"
                or len(self.channels) > 0 or len(self.patterns) > 0)

    def leave_transaction(self) -> None:
        """Forget what MULTI queued and what WATCH watches."""
        self.queue = None
        self.queue_failed = False
        self.queued_bytes = 0
        self.forget_watches()

    def forget_watches(self) -> None:
        for (_, key), (db, state) in self.watches.items():
            db.unwatch(key, state)
        self.watches = {}


cdef class Context:
    """Handed to every handler; one object a server, its fields set before each call.

    `db` is the session's selected database and `now_ms` the wall clock, read once per batch: for
    ids, expiries and ages. `steady_ms` was read with it and never goes back or jumps: for waits,
    retries, idle times and times to live of groups (docs/durability.md#clocks).
    `write_error` is why nothing may be changed now (None when it may), for commands that change
    something only in some of their forms. `may_block` is false inside a transaction. While waiting
    readers are served, `shared` keeps encoded replies for all readers of one append, and `remade`
    the groups, (db, key, name), that one of the readers has made anew; else both are None.
    `events` holds the letters of notify-keyspace-events, b"" when nobody is told anything, and
    `scripts` the digests of the scripts that clients have loaded.
    """

    def __init__(self, Keyspace keyspace, Effects effects, server=None):
        self.keyspace = keyspace
        self.effects = effects
        self.server = server
        self.may_block = True
        self.events = b""
        self.scripts = set()

    # ------------------------------------------------------------ looking up streams

    cdef Stream stream_at(self, Slice* key):
        """The stream at a key for a command that reads it, None when there is none; WRONGTYPE when
        it is something else. Counted as hit or miss, and a miss is told."""
        cdef Stream stream = self.db.stream_at(key)
        if stream is None and self.events:
            self.notify(b"m", b"keymiss", key.ptr[:key.size])
        return stream

    def read_stream(self, bytes key not None):
        """As stream_at, for a key in bytes: what a handler that reads a stream begins with."""
        cdef Stream stream
        self.keyspace.hits += 1
        stream = self.db.stream(key)
        if stream is None:
            self.keyspace.hits -= 1
            self.count_look_up(key, False)
        return stream

    cdef Stream groups_at(self, Slice* key):
        """As stream_at, for commands that change the groups of a stream and that Redis counts as
        readers all the same."""
        cdef Stream stream = self.stream_at(key)
        if stream is None or self.keyspace.capture is None:
            return stream
        return self.db.writable_at(key)

    cpdef Stream stream_with_groups(self, bytes key):
        """As groups_at."""
        cdef Stream stream
        self.keyspace.hits += 1
        stream = self.db.writable_stream(key)
        if stream is None:
            self.keyspace.hits -= 1
            self.count_look_up(key, False)
        return stream

    cdef int count_look_up(self, bytes key, bint found) except -1:
        if found:
            self.keyspace.hits += 1
            return 0
        self.keyspace.misses += 1
        if self.events:
            self.notify(b"m", b"keymiss", key)
        return 0

    # ------------------------------------------------------------ telling

    def notify(self, bytes kind not None, bytes event not None, bytes key not None,
               db_index=None) -> None:
        """Tell subscribers of an event at a key; `kind` is Redis' letter for its class."""
        if kind in self.events:
            self.server.pubsub.keyspace_event(
                kind, event, key, self.db.index if db_index is None else db_index)
