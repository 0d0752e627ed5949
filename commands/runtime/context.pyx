# cython: language_level=3, wraparound=False
"""What a handler is given: the data, the time, the client, and how to report a change.

A handler gets a stream from `read_stream`, `write_stream`, `read_for_update` or `open_stream`, which
count look-ups and let a running snapshot capture the stream, and reports what it changed to
`changed`, which records the effect, counts and notifies.

Handlers take the time from `now_ms` and `steady_ms` and never from a clock, so a whole server runs
under fake ones. `server` is the outside as far as commands may see it (commands/runtime/host.py has
its protocol).
"""

from libc.stdint cimport uint32_t, uint64_t

from millstream.encoding cimport Slice
from millstream.storage.streams.keyspace_core cimport KeyspaceCore as Keyspace
from millstream.storage.streams.stream cimport Stream

from millstream.commands.runtime.effects import WAKES_READERS
from millstream.commands.runtime.events import EVENT_CLASSES
from millstream.storage.streams.idempotence import DURATION_S, MAXSIZE, Window
from millstream.storage.streams.watch import end_watch


cdef class Session:
    """What a server remembers of one client between commands.

    `queue` holds the requests since MULTI (None outside a transaction), `queue_failed` says that
    one of them was refused; `watches` has (Database, state) for every watched (database number,
    key). `channels` and `patterns` are the subscriptions, in order. `user` is who logged in;
    `permission` is None while nothing is forbidden to that user. `reply_mode` is "on", "off", "skip" (CLIENT
    REPLY SKIP itself) or "skip-next". `wrote_seq` is the journal frame of the last change that it
    made, for WAIT. `feed` is what is sent to it if it is a replica.
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
            end_watch(db, key, state)
        self.watches = {}


cdef class Context:
    """Handed to every handler; one object a server, its fields set before each call.

    `db` is the session's selected database and `now_ms` the wall clock, read once per batch: for
    ids, expiries and ages. `steady_ms` was read with it and never goes back or jumps: for waits,
    retries, idle times and times to live of groups (docs/durability.md#clocks).
    `write_error` is why nothing may be changed now (None when it may), for commands that change
    something only in some of their forms. `may_block` is false inside a transaction. While waiting readers
    are served, `shared` keeps encoded replies for all readers of one append, and `remade` the groups,
    (db, key, name), that one of the readers has created again; else both are None. The handler of a
    command that is mostly quick sets `timed_alone` when it did much: its time is then its own.
    `events` holds the letters of notify-keyspace-events, b"" when no events are published, and
    `scripts` the digests of the scripts that clients have loaded.
    """

    def __init__(self, Keyspace keyspace, Effects effects, server=None):
        self.keyspace = keyspace
        self.effects = effects
        self.server = server
        self.may_block = True
        self.events = b""
        self.scripts = set()

    # ------------------------------------------------------------ finding streams

    cdef Stream read_stream_at(self, Slice* key):
        """As `read_stream`, for a key in a request. Every look-up that counts is counted here or in
        `count_look_up`."""
        cdef Stream stream
        self.keyspace.hits += 1  # a key of another type is a hit, too
        stream = self.db.stream_at(key)
        if stream is None:
            self.keyspace.hits -= 1
            self.count_miss(key)
        return stream

    cpdef Stream read_stream(self, bytes key):
        """The stream at a key for a command that reads it; None when there is none, WRONGTYPE when
        the key holds something else. A hit or a miss is counted, and a miss is reported."""
        cdef Slice view = Slice(key, len(key))
        return self.read_stream_at(&view)

    cdef Stream read_for_update_at(self, Slice* key):
        """As `read_for_update`, for a key in a request."""
        cdef Stream stream = self.read_stream_at(key)
        if stream is None or self.keyspace.capture is None:
            return stream
        return self.db.writable_at(key)

    cpdef Stream read_for_update(self, bytes key):
        """As `read_stream`, for a command that Redis counts as a reader and that may change the
        groups of the stream all the same (XREADGROUP, XACK, XCLAIM, XINFO)."""
        cdef Slice view = Slice(key, len(key))
        return self.read_for_update_at(&view)

    cpdef Stream write_stream(self, bytes key):
        """The stream at a key for a command that changes it; None when there is none, WRONGTYPE
        when the key holds something else. A running snapshot captures the stream first. As in
        Redis, the look-up of a write command is neither counted nor reported."""
        return self.db.writable_stream(key)

    cpdef Stream open_stream(self, bytes key):
        """As `write_stream`; the stream is made when there is none."""
        cdef Stream stream = self.db.writable_stream(key)
        if stream is None:
            stream = self.db.make_stream(key, self.keyspace.next_incarnation(self.steady_ms))
            # Making the stream is no change of its own: what is put into it counts. Readers that
            # wait on a group make it again.
            self.change((b"STREAM", key, stream.incarnation), b"new", 0)
            self.set_window(key, stream)
            stream = self.db.stream(key)
        return stream

    cdef int set_window(self, bytes key, Stream stream) except -1:
        """A new stream takes over the configured bounds of its idempotence window."""
        cdef Keyspace keyspace = self.keyspace
        if (keyspace.idmp_duration_s, keyspace.idmp_maxsize) == (DURATION_S, MAXSIZE):
            return 0
        stream.idempotence = Window(keyspace.idmp_duration_s, keyspace.idmp_maxsize)
        return self.change(
            (b"IDMPSET", key, keyspace.idmp_duration_s, keyspace.idmp_maxsize), None, 0)

    cpdef Stream maintained_stream(self, bytes key):
        """The stream at a key for work that the server does on its own (timers, memory): None for
        every other type. The look-up is not a use of the key, but a snapshot captures the stream
        first."""
        cdef Stream stream
        cdef uint32_t used_s
        value = self.db.get(key)
        if not isinstance(value, Stream):
            return None
        used_s = (<Stream>value).used_s
        stream = self.db.writable_stream(key)
        stream.used_s = used_s
        return stream

    cdef int count_hits(self, uint64_t count) except -1:
        """Count look-ups that Redis repeats, of keys that are there."""
        self.keyspace.hits += count
        return 0

    cdef int count_miss(self, Slice* key) except -1:
        self.keyspace.misses += 1
        if self.events:
            self.notify(b"keymiss", key.ptr[:key.size])
        return 0

    def count_look_up(self, bytes key not None, bint found, *, bint reports_miss=True) -> None:
        """Count the look-up of a key of any type as a hit or a miss, and report a miss."""
        cdef Slice view = Slice(key, len(key))
        if found:
            self.keyspace.hits += 1
        elif reports_miss:
            self.count_miss(&view)
        else:
            self.keyspace.misses += 1

    # ------------------------------------------------------------ changing

    def changed(self, *effect, event, count=1) -> None:
        """A handler has changed data: record the effect, count the changes, notify, wake readers.

        `effect` is the words of one effect, bytes or integers: its name, the key, what else
        docs/formats.md lists. `event` is the keyspace event that Redis sends for the key, None
        where Redis sends none. `count` is what Redis adds to rdb_changes_since_last_save. Readers
        that wait for the key are tried again after the command where the effect can help them.
        """
        self.change(effect, event, count)

    cdef int change(self, tuple effect, bytes event, uint64_t count) except -1:
        """As `changed`, for compiled callers."""
        self.effects.put_effect(self.db.index, effect)
        if effect[0] in WAKES_READERS:
            self.db.mark_ready(effect[1])
        return self.count_change(None if event is None else effect[1], event, count)

    def changed_databases(self, *effect, count, db_index=-1) -> None:
        """As `changed`, for an effect on all keys of a database (of all databases: -1). Redis sends
        no event for these. Without words there is nothing to record."""
        self.keyspace.dirty += count
        if effect:
            self.effects.record(db_index, *effect)

    def notify(self, bytes event not None, bytes key not None, db_index=None) -> None:
        """Notify the subscribers of an event at a key, beyond the event that `changed` sends."""
        if not self.events:
            return
        kind = EVENT_CLASSES[event]
        if kind in self.events:
            self.server.pubsub.keyspace_event(
                kind, event, key, self.db.index if db_index is None else db_index)
