# cython: language_level=3, wraparound=False
"""The context of a handler: the data, the time, the client, and how to report a change.

A handler gets a stream from `read_stream`, `write_stream`, `read_for_update` or `open_stream`, which
count look-ups and let a running snapshot capture the stream, and reports what it changed to
`changed`, which records the effect, counts and notifies.

Handlers take the time from `now_ms` and `steady_ms` and never from a clock, so a whole server can
run with fake clocks. `server` is the part of the server that commands may use
(each module of commands/ states what it needs of it).
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.encoding cimport Slice
from millstream.storage.keyspace.keyspace_core cimport NO_DATABASE, KeyspaceCore as Keyspace
from millstream.storage.streams.stream cimport Stream, must_settle

from millstream.commands.runtime.effects import WAKES_READERS
from millstream.commands.runtime.keyspace_events import EVENT_CLASSES
from millstream.commands.runtime.stream_effects import IDMPSET, STREAM
from millstream.storage.streams.idempotence import DURATION_S, MAXSIZE, Window
from millstream.storage.keyspace.watch import end_watch


# A ready mark after which no reader is retried: streams are settled.
cdef tuple SETTLE = (NO_DATABASE, b"")

cdef enum:
    NO_KEY_MS = -2  # TTL's reply without a key
    NO_EXPIRY_MS = -1  # TTL's reply without an expiry


cdef value_at(Context ctx, Slice* key):
    """The value at a key for a command that only inspects it: counted as a hit or a miss."""
    value = ctx.db.value_of(ctx.db.key_of(key))
    if value is None:
        ctx.count_miss(key)
    else:
        ctx.keyspace.hits += 1
    return value


cdef class Session:
    """The state of one client between commands.

    `queue` holds the requests since MULTI (None outside a transaction), `queue_failed` says that
    one of them was refused; `watches` has (Database, state) for every watched (database number,
    key). `channels`, `patterns` and `shard_channels` are the subscriptions, in order. `user` is the logged-in user;
    `permission` is None if the user is not restricted. `reply_mode` is "on", "off", "skip" (CLIENT
    REPLY SKIP itself) or "skip-next". `wrote_seq` is the journal frame of its last change, for
    WAIT. `feed` is the stream of frames to it if it is a replica.
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
        self.shard_channels = {}
        self.reply_mode = "on"

    cdef bint is_special(self) noexcept:
        """True if this client's requests or replies need special handling."""
        return self.queue is not None or self.reply_mode != "on" or self.is_subscribed()

    cdef bint is_subscribed(self) noexcept:
        return (len(self.channels) > 0 or len(self.patterns) > 0
                or len(self.shard_channels) > 0)

    @property
    def subscribed(self) -> bool:
        """True if the client has subscriptions of any kind."""
        return self.is_subscribed()

    def leave_transaction(self) -> None:
        """Forget queued requests and watched keys."""
        self.queue = None
        self.queue_failed = False
        self.queued_bytes = 0
        self.forget_watches()

    def forget_watches(self) -> None:
        for (_, key), (db, state) in self.watches.items():
            end_watch(db, key, state)
        self.watches = {}


cdef class Context:
    """The argument of every handler; one object per server, whose fields are set before each call.

    `db` is the session's selected database and `now_ms` the wall clock, read once per batch: for
    ids, expiries and ages. `steady_ms` was read with it and never goes back or jumps: for waits,
    retries, idle times and times to live of groups (docs/durability.md#clocks). `wall_ahead_ms` is
    how far the wall clock is ahead of it, to convert times that clients send or see: the difference
    of the two readings would vary by a millisecond. `write_error` is
    the error of changes (None if changes are allowed), for commands of which only some forms change
    data; `memory_error` is that of commands that need memory, for those of which some forms do. `may_block` is false inside a transaction. While waiting readers are served, `shared` has
    encoded replies for all readers of one append, and `remade` the groups, (db, key, name), that
    one of the readers has created again; otherwise both are None. The handler of a hot command sets
    `timed_alone` after unusually long work, so that the command is timed individually. `events`
    holds the letters of notify-keyspace-events, b"" when no events are published, and `scripts` the
    digests of the scripts that clients have loaded.
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
        """`read_stream` for a key in a request. All look-ups that count are counted here or in
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
        cdef Stream stream
        cdef Slice view
        self.keyspace.hits += 1
        stream = self.db.find(key)
        if stream is None:
            view = Slice(key, len(key))
            self.keyspace.hits -= 1
            self.count_miss(&view)
        return stream

    cdef Stream read_for_update_at(self, Slice* key):
        """`read_for_update` for a key in a request."""
        cdef Stream stream = self.read_stream_at(key)
        if stream is None:
            return stream
        if must_settle(stream):
            self.mark_settling(self.db.key_of(key), stream)
        if self.keyspace.capture is None:
            return stream
        return self.db.writable_at(key)

    cpdef Stream read_for_update(self, bytes key):
        """Like `read_stream`, for a command that Redis counts as a reader but that may change the
        stream's groups (XREADGROUP, XACK, XCLAIM, XINFO)."""
        cdef Slice view = Slice(key, len(key))
        return self.read_for_update_at(&view)

    cpdef Stream write_stream(self, bytes key):
        """The stream at a key for a command that changes it; None when there is none, WRONGTYPE
        when the key holds something else. A running snapshot captures the stream first. As in
        Redis, the look-up of a write command is neither counted nor reported."""
        cdef Slice view = Slice(key, len(key))
        return self.write_stream_at(&view)

    cdef int mark_settling(self, bytes key, Stream stream) except -1:
        """Mark a stream with a policy that depends on groups: this is enforced after the command."""
        if not stream.policy.is_marked:
            stream.policy.is_marked = True
            self.keyspace.settling.append((self.db.index, key, stream.policy))
            self.keyspace.ready.append(SETTLE)
        return 0

    cpdef Stream open_stream(self, bytes key):
        """Like `write_stream`; the stream is created if it does not exist."""
        cdef Stream stream = self.write_stream(key)
        if stream is None:
            stream = self.db.make_stream(key, self.keyspace.next_incarnation(self.steady_ms))
            # Creating the stream does not count as a change; the later append does. Readers that
            # wait on a group create it again.
            self.change((STREAM, key, stream.incarnation), b"new", 0)
            self.set_window(key, stream)
            stream = self.db.stream(key)
        return stream

    cdef int set_window(self, bytes key, Stream stream) except -1:
        """Set the configured bounds of a new stream's idempotence window."""
        cdef Keyspace keyspace = self.keyspace
        if (keyspace.idmp_duration_s, keyspace.idmp_maxsize) == (DURATION_S, MAXSIZE):
            return 0
        stream.idempotence = Window(keyspace.idmp_duration_s, keyspace.idmp_maxsize)
        return self.change(
            (IDMPSET, key, keyspace.idmp_duration_s, keyspace.idmp_maxsize), None, 0)

    cpdef Stream maintained_stream(self, bytes key):
        """The stream at a key for automatic work (timers, memory); None for another type. The
        look-up is not a use of the key, but a snapshot captures the stream first."""
        cdef Stream stream
        cdef uint32_t used_s
        cdef Slice view = Slice(key, len(key))
        value = self.db.value_of(key)
        if not isinstance(value, Stream):
            return None
        used_s = (<Stream>value).used_s
        stream = self.db.writable_at(&view)
        stream.used_s = used_s
        if must_settle(stream):
            self.mark_settling(key, stream)
        return stream

    cdef int count_hits(self, uint64_t count) except -1:
        """Count additional look-ups of existing keys, where Redis looks a key up more than once."""
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

    # ------------------------------------------------------------ inspecting keys of a request

    def take_value(self, Args args not None):
        """Take a key; the value at it, for a command that only inspects it. Counts as a hit or a
        miss, not as a use of the key."""
        return value_at(self, args.take_slice())

    def count_existing(self, Args args not None) -> int:
        """The number of the remaining words that are existing keys; each is counted as a
        look-up."""
        cdef int64_t count = 0
        while args.pos < args.count:
            if value_at(self, args.take_slice()) is not None:
                count += 1
        return count

    def take_expiry_ms(self, Args args not None) -> int:
        """Take a key; its expiry in unix milliseconds: -2 when the key does not exist, -1 when it
        has no expiry. Counts as a look-up."""
        cdef Slice* key = args.take_slice()
        if value_at(self, key) is None:
            return NO_KEY_MS
        if not self.db.expiries:
            return NO_EXPIRY_MS
        return self.db.expiries.get(self.db.key_of(key), NO_EXPIRY_MS)

    def take_present(self, Args args not None) -> list:
        """The remaining words that are keys in the table, including expired ones, in order."""
        cdef list present = []
        cdef Slice* word
        while args.pos < args.count:
            word = args.take_slice()
            key = self.db.key_of(word)
            if key in self.db.table:
                present.append(key)
        return present

    # ------------------------------------------------------------ changing

    def changed(self, *effect, event, count=1) -> None:
        """Report a change by a handler: record the effect, count the change, notify, wake readers.

        `effect` is the words of one effect, bytes or integers: its name, the key, and further words
        as in docs/formats.md. `event` is the keyspace event that Redis sends for the key, None if
        Redis sends none. `count` is the number that Redis adds to rdb_changes_since_last_save.
        Readers that wait for the key are retried after the command if the effect can help them.
        """
        self.change(effect, event, count)

    cdef int change(self, tuple effect, bytes event, uint64_t count) except -1:
        """`changed` for compiled callers."""
        self.effects.put_effect(self.db.index, effect)
        if effect[0] in WAKES_READERS:
            self.db.mark_ready(effect[1])
        return self.count_change(None if event is None else effect[1], event, count)

    def changed_databases(self, *effect, count, db_index=-1) -> None:
        """Like `changed`, for an effect on all keys of a database (-1: of all databases). Redis
        sends no events for these. Without words, no effect is recorded."""
        self.keyspace.dirty += count
        if effect:
            self.effects.record(db_index, *effect)

    def notify(self, bytes event not None, bytes key not None, db_index=None) -> None:
        """Publish an event at a key, in addition to the event that `changed` sends."""
        if not self.events:
            return
        kind = EVENT_CLASSES[event]
        if kind in self.events:
            self.server.pubsub.keyspace_event(
                kind, event, key, self.db.index if db_index is None else db_index)
