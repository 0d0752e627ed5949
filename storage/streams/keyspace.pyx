# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""All keys of all databases, and the look-ups that commands do.

A value is a Stream or the bytes of a string. Whoever is about to change a stream gets it from
`writable_at` or `writable_stream`: while a snapshot is being taken, a key that was not captured yet
is captured there (storage/streams/capture).

SCAN must return every key that is there throughout. Each key has a fixed slot by its checksum and a
cursor is a slot number, so no change elsewhere can move a key from after a cursor to before it.

A key may have an expiry. A look-up after it finds nothing and deletes the key; the server
also deletes what is due by its timer. `now_ms` is the time they go by. While effects are applied
at start nothing expires: the journal says what did.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from bisect import bisect_left
from itertools import islice

from millstream.encoding cimport Slice
from millstream.storage.streams.group cimport Group
from millstream.storage.streams.retention cimport due_ms
from millstream.storage.streams.held cimport Held
from millstream.storage.streams.stream cimport Stream

from millstream.errors import WRONG_TYPE, CommandError
from millstream.storage.streams.capture import Capture
from millstream.storage.blocks.checksum import crc32
from millstream.storage.streams.expiry_queue import ExpiryQueue
from millstream.storage.streams.idempotence import DURATION_S, MAXSIZE
from millstream.storage.streams.key_walk import SLOTS as KEY_SLOTS
from millstream.storage.streams.key_walk import KeyIterator
from millstream.storage.streams.retention_schedule import RetentionSchedule
from millstream.storage.streams.restore import restore_key
from millstream.storage.blocks.lazyfree import discard_table

cdef int SLOTS = KEY_SLOTS
cdef uint64_t NEVER = 0xffffffffffffffffULL
# Producers that a stream remembers by default.
PRODUCERS_MAX = 100_000
# By default: bytes of held entries and open reservations of a stream, and writers it remembers.
HELD_MAX_BYTES = 256 << 20
RESERVATIONS_MAX = 10_000
WRITERS_MAX = 1000


class Appended(bytes):
    """A string that was appended to: for OBJECT ENCODING it is `raw` from then on, as in Redis. It
    may not leave the database as it is: replies want plain bytes."""


class Sum(bytes):
    """The text of a floating point number that was added to: for OBJECT ENCODING it is never
    `int`, as in Redis. It may not leave the database as it is, either."""


GROWING = Appended()

# A longer string is `raw` for OBJECT ENCODING however it was made.
cdef Py_ssize_t RAW_BYTES = 64
# A longer string is patched in place.
cdef Py_ssize_t PATCHED_IN_PLACE_BYTES = 65536


cdef changed_string(text):
    """A string that was appended to or patched, as it is kept."""
    return bytes(text) if len(text) > RAW_BYTES else Appended(text)


cdef bytes patched(bytes old, Py_ssize_t offset, bytes part):
    """A string with `part` at an offset, and zeros where it was shorter. The zeros of a large one
    take no time: the operating system gives memory that is zero when it is first used."""
    cdef Py_ssize_t end = offset + len(part)
    cdef bytes made = bytes(max(end, len(old)))
    memcpy(PyBytes_AS_STRING(made), PyBytes_AS_STRING(old), len(old))
    memcpy(PyBytes_AS_STRING(made) + offset, PyBytes_AS_STRING(part), len(part))
    return made


cdef class Database:
    """The keys of one database.

    `waiting` maps keys to what blocked clients wait on them with; `watched` those that WATCH names
    to a Watch; `expiries` keys to the unix time in milliseconds at which they go, and `due` knows
    the earliest. append_buffers holds strings that are being appended to, in a form that
    grows in place; who reads such a key finds GROWING in the table and has it settled into bytes.
    """

    def __init__(self, Keyspace keyspace, int index):
        self.keyspace = keyspace
        self.index = index
        self.waiting = {}
        self.watched = {}
        self.begin_table()

    cdef int begin_table(self) except -1:
        self.table = {}
        self.slots = {}
        self.expiries = {}
        self.due = ExpiryQueue()
        self.used_s = {}
        self.append_buffers = {}
        self.reservations = 0
        return self.forget_cached()

    # ------------------------------------------------------------ streams, from argument views

    cdef bytes key_of(self, Slice* key):
        """The key as bytes; the object of the last one is used again."""
        cdef bytes cached = self.cached_key
        if cached is not None and PyBytes_GET_SIZE(cached) == key.size and memcmp(
                PyBytes_AS_STRING(cached), key.ptr, key.size) == 0:
            return cached
        return PyBytes_FromStringAndSize(key.ptr, key.size)

    cdef inline Stream find_at(self, Slice* key):
        cdef bytes cached = self.cached_key
        if cached is not None and PyBytes_GET_SIZE(cached) == key.size and memcmp(
                PyBytes_AS_STRING(cached), key.ptr, key.size) == 0:
            # A key with an expiry is never cached.
            if self.keyspace.touching:
                self.cached_stream.used_s = self.keyspace.now_s
            return self.cached_stream
        return self.stream(PyBytes_FromStringAndSize(key.ptr, key.size))

    cdef Stream stream_at(self, Slice* key):
        """As `stream`, for a key in a request."""
        return self.find_at(key)

    cdef Stream writable_at(self, Slice* key):
        """As `writable_stream`, for a key in a request."""
        cdef Stream stream = self.find_at(key)
        if self.keyspace.capture is not None and stream is not None:
            self.capture_stream(self.key_of(key), stream)
        return stream

    cpdef Stream stream(self, bytes key):
        """The stream at a key, None when there is none; WRONGTYPE when it is something else."""
        value = self.table.get(key)
        if value is None:
            return None
        if self.expiries and self.has_expired(key):
            return None
        if not isinstance(value, Stream):
            raise CommandError(WRONG_TYPE)
        if self.keyspace.touching:
            (<Stream>value).used_s = self.keyspace.now_s
        if not self.expiries or key not in self.expiries:
            self.cached_key = key
            self.cached_stream = value
        return value

    cpdef Stream writable_stream(self, bytes key):
        """As `stream`, for a caller that will change it."""
        cdef Stream stream = self.stream(key)
        if stream is not None and self.keyspace.capture is not None:
            self.capture_stream(key, stream)
        return stream

    cdef int capture_stream(self, bytes key, Stream stream) except -1:
        """A stream is about to change: most were captured before, or came later."""
        if stream.capture_mark != self.keyspace.capture_number:
            self.keyspace.capture.before_change(self, key, stream)
        return 0

    cpdef Stream make_stream(self, bytes key, uint64_t incarnation):
        """Put an empty stream at a free key."""
        cdef Stream stream = Stream(incarnation)
        self.before_change(key)
        if incarnation > self.keyspace.incarnation:
            self.keyspace.incarnation = incarnation
        self.put(key, stream)
        return stream

    cpdef int forget_cached(self) noexcept:
        """The key last asked for may have another value now, and its stream may be gone."""
        self.cached_key = None
        self.cached_stream = None
        return 0

    # ------------------------------------------------------------ keys

    def get(self, bytes key not None):
        """The value at a key: a Stream, bytes, or None. Not a use of the key (OBJECT IDLETIME)."""
        value = self.peek(key)
        return self.settle(key) if value is GROWING else value

    cdef peek(self, bytes key):
        """As `get`, but GROWING for a string that is being appended to."""
        value = self.table.get(key)
        if value is None or (self.expiries and self.has_expired(key)):
            return None
        return value

    cdef settle(self, bytes key):
        """Give a string that was growing its usual form: one copy for all the appends before."""
        value = self.table[key] = changed_string(self.append_buffers.pop(key))
        return value

    def settle_all(self) -> None:
        """Give all strings that were growing their usual form."""
        for key in list(self.append_buffers):
            self.settle(key)

    def string_bytes(self, bytes key not None) -> int | None:
        """The length of the string at a key; None when there is none, or something else."""
        value = self.table.get(key)
        if not isinstance(value, bytes) or (self.expiries and self.has_expired(key)):
            return None
        return len(self.append_buffers[key] if value is GROWING else value)

    def extend(self, bytes key not None, bytes more not None) -> int:
        """Append to the string at a key, in time that does not depend on its length unless it was
        read since the last time; its length afterwards. Its expiry stays."""
        cdef bytearray text
        self.before_change(key)
        text = self.buffer_of(key)
        text += more
        self.note_changed(key)
        return len(text)

    def patch(self, bytes key not None, Py_ssize_t offset, bytes part not None) -> int:
        """Put bytes over a part of the string at a key, or of an empty one if there is none; zeros
        come before them where it is shorter. Returns its length afterwards. Its expiry stays. A
        long one is changed in place unless it was read since the last time."""
        cdef bytearray text
        cdef Py_ssize_t end = offset + len(part)
        value = self.peek(key)
        if value is not GROWING and (value is None or len(value) < PATCHED_IN_PLACE_BYTES
                                     or end > 2 * len(value)):
            value = changed_string(patched(
                b"" if value is None else bytes(value), offset, part))
            self.set(key, value, True)
            return len(value)
        self.before_change(key)
        text = self.buffer_of(key)
        if len(text) < end:
            text += bytes(end - len(text))
        memcpy(PyByteArray_AS_STRING(text) + offset, PyBytes_AS_STRING(part), len(part))
        self.note_changed(key)
        return len(text)

    cdef bytearray buffer_of(self, bytes key):
        """The string at a key in the form that is changed in place."""
        value = self.table[key]
        if value is GROWING:
            return self.append_buffers[key]
        text = self.append_buffers[key] = bytearray(value)
        self.table[key] = GROWING
        return text

    cdef int note_changed(self, bytes key) except -1:
        """A string was changed in place."""
        if self.keyspace.touching:
            self.note_use(key, GROWING)
        return self.mark_ready(key)

    def look_up(self, bytes key not None) -> None:
        """Count a look-up and a use of a key that is there, without its value."""
        self.keyspace.hits += 1
        if self.keyspace.touching:
            self.note_use(key, self.table[key])

    def read(self, bytes key not None):
        """As `get`, as a use of the key and a look-up that is counted."""
        value = self.get(key)
        if value is None:
            self.keyspace.misses += 1
            return None
        self.keyspace.hits += 1
        if self.keyspace.touching:
            self.note_use(key, value)
        return value

    cdef int note_use(self, bytes key, value) except -1:
        if isinstance(value, Stream):
            (<Stream>value).used_s = self.keyspace.now_s
        else:
            self.used_s[key] = self.keyspace.now_s
        return 0

    def touch(self, bytes key not None) -> bool:
        """Use a key; False when it is not there."""
        value = self.get(key)
        if value is None:
            return False
        self.note_use(key, value)
        return True

    def idle_s(self, bytes key not None) -> int:
        """Seconds since the key was last used."""
        value = self.table[key]
        used_s = (<Stream>value).used_s if isinstance(value, Stream) else self.used_s[key]
        return max(0, <int64_t>self.keyspace.now_s - <int64_t>used_s)

    def set_idle_s(self, bytes key not None, uint64_t idle_s) -> None:
        """Let the last use of a key that is there be this long ago."""
        cdef uint32_t now_s = self.keyspace.now_s
        used_s = now_s - <uint32_t>idle_s if idle_s < now_s else 0
        value = self.table[key]
        if isinstance(value, Stream):
            (<Stream>value).used_s = used_s
        else:
            self.used_s[key] = used_s

    def set(self, bytes key not None, value, bint keep_expiry=False) -> None:
        """Put bytes or a Stream at a key, whatever was there; its expiry goes unless it is kept."""
        self.before_change(key)
        if not keep_expiry:
            self.drop_expiry(key)
        self.put(key, value)
        if isinstance(value, Stream):
            self.schedule_groups(key, value)
        self.mark_ready(key)

    cpdef int put(self, bytes key, value) except -1:
        """Put a value at a key, without an effect on its expiry and without a notification."""
        old = self.table.get(key)
        if old is None:
            slot = crc32(key) & (SLOTS - 1)
            self.slots.setdefault(slot, []).append(key)
            if self.keyspace.walks:
                self.note_come(slot, key)
        elif isinstance(old, Stream):
            self.forget_moment(key, old)
        self.table[key] = value
        if self.append_buffers:
            self.append_buffers.pop(key, None)
        self.note_use(key, value)
        if isinstance(value, Stream):
            if (<Stream>value).held is not None:
                self.reservations += (<Held>(<Stream>value).held).reservations
            # What is put somewhere now belongs to no point in time that is being taken.
            (<Stream>value).capture_mark = self.keyspace.capture_number
        return self.forget_cached()

    cpdef int schedule_groups(self, bytes key, Stream stream) except -1:
        """The moments of its groups and of its policy were noted under another key, or not at
        all. What its policy evicts for its age is looked for soon: at start entries may follow
        that do not schedule a check."""
        cdef Group group
        if stream.policy is not None:
            stream.policy.next_check_ms = self.keyspace.note_trim(AT_ONCE, self.index, key)
        if stream.held is not None:
            self.schedule_leases(key, stream.held)
        for group in stream.groups.values():
            group.scheduled_ms = NEVER
            if group.blocked_clients:
                # Its readers waited under the old key and leave it now: its time to live begins.
                group.last_used_ms = self.keyspace.steady_ms
                if group.ttl_ms:
                    group.scheduled_ms = group.last_used_ms + group.ttl_ms
                    self.keyspace.timer_requests.append(
                        (group.scheduled_ms, self.index, key, group.name))
            self.keyspace.schedule(self.index, key, group)
        return 0

    cdef int schedule_leases(self, bytes key, object what) except -1:
        """The moments of its leases were noted under another key, or not at all."""
        cdef Held held = what
        held.scheduled_ms = held.next_deadline_ms
        if held.scheduled_ms != NEVER:
            self.keyspace.timer_requests.append((held.scheduled_ms, self.index, key, None))
        return 0

    def delete(self, bytes key not None) -> bool:
        """Remove a key; False when it was not there."""
        if key not in self.table or (self.expiries and self.has_expired(key)):
            return False
        self.before_change(key)
        self.remove(key)
        self.mark_ready(key)
        return True

    cdef int note_come(self, int slot, bytes key) except -1:
        """A key is new: it does not belong to what is being walked."""
        for walk in self.keyspace.walks:
            walk.note_come(self.slots, slot, key)
        return 0

    cdef int note_gone(self, bytes key) except -1:
        """A key goes: it belongs to what is being walked, unless it came or was due before."""
        cdef int slot = crc32(key) & (SLOTS - 1)
        for walk in self.keyspace.walks:
            walk.note_gone(self.slots, slot, key)
        return 0

    cdef int remove(self, bytes key) except -1:
        if self.keyspace.walks:
            self.note_gone(key)
        value = self.table.pop(key)
        if isinstance(value, Stream):
            self.forget_moment(key, value)
        self.used_s.pop(key, None)
        if self.append_buffers:
            self.append_buffers.pop(key, None)
        self.drop_expiry(key)
        slot = crc32(key) & (SLOTS - 1)
        keys = self.slots[slot]
        keys.remove(key)
        if not keys:
            del self.slots[slot]
        return self.forget_cached()

    cdef int forget_moment(self, bytes key, Stream stream) except -1:
        """A stream is gone from its key: it is not to be trimmed there any more, and its
        reservations do not count."""
        if stream.held is not None:
            self.reservations -= (<Held>stream.held).reservations
        if stream.policy is not None:
            self.keyspace.calendar.forget(stream.policy.next_check_ms, self.index, key)
        return 0

    def exchange(self, Database other not None) -> None:
        """Exchange all keys with another database; those who wait or watch stay."""
        self.table, other.table = other.table, self.table
        self.slots, other.slots = other.slots, self.slots
        self.expiries, other.expiries = other.expiries, self.expiries
        self.due, other.due = other.due, self.due
        self.used_s, other.used_s = other.used_s, self.used_s
        self.append_buffers, other.append_buffers = other.append_buffers, self.append_buffers
        self.reservations, other.reservations = other.reservations, self.reservations
        self.forget_cached()
        other.forget_cached()

    def rename(self, bytes key not None, Database to not None, bytes new_key not None) -> None:
        """Move what is at a key, expiry and all, to another key of this or another database;
        whatever was there is gone."""
        value = self.table[key]
        if value is GROWING:
            value = self.settle(key)
        expiry_ms = self.expiries.get(key)
        used_s = (<Stream>value).used_s if isinstance(value, Stream) else self.used_s[key]
        self.before_change(key)
        to.before_change(new_key)
        self.remove(key)
        to.drop_expiry(new_key)
        to.put(new_key, value)
        if expiry_ms is not None:
            to.note_expiry(new_key, expiry_ms)
        if isinstance(value, Stream):
            (<Stream>value).used_s = used_s
            to.schedule_groups(new_key, value)
        else:
            to.used_s[new_key] = used_s
        self.mark_ready(key)
        to.mark_ready(new_key)

    def clear(self) -> int:
        """Remove every key; returns how many there were."""
        count = len(self.table)
        for key, watch in self.watched.items():
            watch.changes += key in self.table
        for table in (self.table, self.slots, self.expiries, self.due.keys, self.used_s):
            discard_table(self.keyspace, table)
        self.begin_table()
        if count:
            self.keyspace.calendar.forget_database(self.index)
        for key in self.waiting:
            self.mark_ready(key)
        return count

    cpdef int before_change(self, bytes key) except -1:
        """Call before the value or the expiry at a key is replaced or removed."""
        if self.keyspace.capture is not None:
            self.keyspace.capture.before_change(self, key, self.table.get(key))
        if self.watched:
            watch = self.watched.get(key)
            if watch is not None:
                watch.changes += 1
        return 0

    def keys(self):
        """All keys, those that are due and not yet deleted too; the database must not change while
        they are walked."""
        return self.table.keys()

    def walk(self):
        """Begin to walk the keys that are there now. End it with `close`."""
        return KeyIterator(self.keyspace, self)

    def scan(self, uint64_t cursor, uint64_t count) -> tuple[int, list[bytes]]:
        """Keys from a cursor on (0 starts), about `count`, and the next cursor, 0 at the end. They
        may be due and not yet deleted."""
        cdef list found = []
        cdef uint64_t slot
        if len(self.slots) < 2048:
            order = sorted(self.slots)
            for slot in order[bisect_left(order, cursor):]:
                if <uint64_t>len(found) >= count:
                    return slot, found
                found += self.slots[slot]
            return 0, found
        for slot in range(cursor, <uint64_t>SLOTS):
            if <uint64_t>len(found) >= count:
                return slot, found
            keys = self.slots.get(slot)
            if keys is not None:
                found += keys
        return 0, found

    def key_at(self, uint64_t number) -> bytes | None:
        """Some key, another one for another number; None when there is none."""
        cdef uint64_t slot = number % SLOTS
        if not self.table:
            return None
        if len(self.slots) < 2048:
            order = list(self.slots)
            keys = self.slots[order[number % <uint64_t>len(order)]]
        else:
            while slot not in self.slots:
                slot = (slot + 1) % SLOTS
            keys = self.slots[slot]
        return keys[(number // SLOTS) % <uint64_t>len(keys)]

    def __len__(self) -> int:
        return len(self.table)

    # ------------------------------------------------------------ expiry

    cdef bint has_expired(self, bytes key) except -1:
        """Whether a key's time has come; it is then deleted, unless nothing may be changed now."""
        cdef Keyspace keyspace = self.keyspace
        expiry_ms = self.expiries.get(key)
        if expiry_ms is None or not keyspace.expiring or <uint64_t>expiry_ms > keyspace.now_ms:
            return False
        if keyspace.may_delete:
            self.drop_expired(key)
        return True

    cdef int drop_expired(self, bytes key) except -1:
        self.before_change(key)
        self.remove(key)
        self.mark_ready(key)
        self.keyspace.expired_count += 1
        self.keyspace.dirty += 1
        if self.keyspace.on_expired is not None:
            self.keyspace.on_expired(self.index, key)
        return 0

    def expiry_ms(self, bytes key not None) -> int:
        """The unix time in milliseconds at which a key goes, 0 for never."""
        return self.expiries.get(key, 0)

    def set_expiry(self, bytes key not None, uint64_t at_ms) -> None:
        """Let a key that is there go at a unix time in milliseconds; 0: never."""
        self.before_change(key)
        self.drop_expiry(key)
        if at_ms:
            self.note_expiry(key, at_ms)
        self.forget_cached()

    cpdef int note_expiry(self, bytes key, uint64_t at_ms) except -1:
        self.expiries[key] = at_ms
        self.due.add(at_ms, key)
        self.keyspace.expiry_noted = True
        return 0

    cdef int drop_expiry(self, bytes key) except -1:
        if self.expiries:
            expiry_ms = self.expiries.pop(key, None)
            if expiry_ms is not None:
                self.due.remove(expiry_ms, key)
        return 0

    @property
    def expiring_count(self) -> int:
        """How many keys have an expiry."""
        return len(self.expiries)

    def average_ttl_ms(self) -> int:
        """Of some of the keys with an expiry, the time that is left to them on average."""
        some = list(islice(self.expiries.values(), 64))
        now_ms = self.keyspace.now_ms
        return sum(max(0, at - now_ms) for at in some) // len(some) if some else 0

    # ------------------------------------------------------------ readiness

    cdef int mark_ready_at(self, Slice* key) except -1:
        if self.waiting:
            self.mark_ready(self.key_of(key))
        return 0

    cpdef int mark_ready(self, bytes key) except -1:
        """Something that blocked readers of this key may wait for has happened."""
        if key in self.waiting:
            self.keyspace.ready.append((self.index, key))
        return 0


cdef class Keyspace:
    """Sixteen databases and what belongs to all of them.

    `dirty` counts changes; `ready` and `timer_requests` collect, for the server, keys whose waiting readers
    are to be tried again and the moments at which groups have something to do; node_entries and
    node_bytes are the limits of a node.

    Readers were promised that nothing comes up to `promised_ms` in the streams that they follow; the
    journal has `recorded_promise_ms`, which is at or after it. `has_ordering` says that a stream has,
    or had, what only TRESERVE and its like make, `expiry_log_ms` when an expired lease is logged
    again.

    `now_ms` is the time keys expire by, `steady_ms` that from which restored groups count, and
    `newest_steady_ms` the latest time that what was loaded tells of that clock. While `expiring` is false (at
    start) no key expires; while `may_delete` is false those that are due are not there, but stay;
    while `touching` is false commands do not count as a use of a key. `on_expired(db_index, key)` is called for
    each key that went by its time; `expiry_noted` says that some key got an expiry, or `calendar` a
    stream to be looked at for what its policy evicts. `deferred` holds
    the (db, key, name) of groups whose moment came while nothing might be deleted.
    """

    def __init__(self, int databases=16, uint32_t node_entries=100, uint32_t node_bytes=4096):
        self.node_entries = node_entries
        self.node_bytes = node_bytes
        self.idmp_duration_s = DURATION_S
        self.idmp_maxsize = MAXSIZE
        self.producers_max = PRODUCERS_MAX
        self.held_max_bytes = HELD_MAX_BYTES
        self.reservations_max = RESERVATIONS_MAX
        self.writers_max = WRITERS_MAX
        self.ready = []
        self.timer_requests = []
        self.deferred = []
        self.walks = []
        self.calendar = RetentionSchedule()
        self.touching = True
        self.may_delete = True
        self.active_expiry = True
        self.databases = [Database(self, i) for i in range(databases)]

    def set_time(self, uint64_t now_ms, steady_ms=None) -> None:
        """The time by which keys expire, and that by which groups wait, by default the same."""
        self.set_now(now_ms, now_ms if steady_ms is None else steady_ms)

    cdef int set_now(self, uint64_t now_ms, uint64_t steady_ms) noexcept:
        self.now_ms = now_ms
        self.steady_ms = steady_ms
        self.now_s = <uint32_t>(steady_ms // 1000)
        return 0

    cpdef int note_steady(self, uint64_t steady_ms) noexcept:
        """What is loaded was recorded at this time, or later."""
        self.newest_steady_ms = max(self.newest_steady_ms, steady_ms)
        return 0

    def next_expiry_ms(self) -> int | None:
        """The earliest time at which a key expires; None when none will expire automatically."""
        if not self.active_expiry:
            return None
        cdef Database db
        cdef uint64_t earliest = NEVER
        for db in self.databases:
            if db.expiries:
                earliest = min(earliest, <uint64_t>db.due.earliest_ms())
        return None if earliest == NEVER else earliest

    def expire_due(self, Py_ssize_t limit) -> int:
        """Delete keys whose time has come, at most `limit` of them; returns how many."""
        cdef Database db
        cdef Py_ssize_t dropped = 0
        if not (self.active_expiry and self.may_delete and self.expiring):
            return 0
        for db in self.databases:
            while dropped < limit and db.expiries and db.due.earliest_ms() <= self.now_ms:
                db.drop_expired(db.due.key_at(db.due.earliest_ms()))
                dropped += 1
        return dropped

    cpdef uint64_t next_incarnation(self, uint64_t now_ms) except? 0:
        """A number for a new stream, above all given before; from the clock, so that it rises also
        where no journal remembers the last one."""
        self.incarnation = max(self.incarnation + 1, now_ms << 10)
        return self.incarnation

    cpdef int schedule_trim(self, int db_index, bytes key, Stream stream) except -1:
        """Note the next moment at which a stream's policy evicts something for its age."""
        cdef uint64_t moment_ms = due_ms(stream)
        if moment_ms < stream.policy.next_check_ms:
            stream.policy.next_check_ms = self.note_trim(moment_ms, db_index, key)
        return 0

    def trim_soon(self, int db_index, bytes key not None, Stream stream not None) -> None:
        """Look at a stream that has a policy as soon as the timer comes."""
        stream.policy.next_check_ms = self.note_trim(AT_ONCE, db_index, key)

    cdef uint64_t note_trim(self, uint64_t moment_ms, int db_index, bytes key) except? 0:
        self.expiry_noted = True
        return self.calendar.note(moment_ms, db_index, key)

    cpdef int schedule(self, int db_index, bytes key, group) except -1:
        """Note the next time at which a group may have an automatic change."""
        return self.schedule_after(db_index, key, group, 0)

    cpdef int schedule_after(self, int db_index, bytes key, group, uint64_t past_ms) except -1:
        """As `schedule`; retries and claims due up to past_ms had their turn and need none."""
        cdef Group timed = group
        cdef uint64_t moment = timed.expiry_bound()
        cdef uint64_t wake = timed.wake_bound()
        cdef uint64_t claim = timed.claim_bound()
        cdef uint64_t end
        if timed.retry_waiters and past_ms < wake < moment:
            moment = wake
        if past_ms < claim < moment:
            moment = claim
        if timed.ttl_ms and not timed.blocked_clients:
            end = timed.last_used_ms + timed.ttl_ms
            if end >= timed.last_used_ms and end < moment:
                moment = end
        if moment < timed.scheduled_ms:
            timed.scheduled_ms = moment
            self.timer_requests.append((moment, db_index, key, timed.name))
        return 0

    def mark_ready(self, int db_index, bytes key) -> None:
        """Something that blocked readers of this key may wait for has happened."""
        (<Database>self.databases[db_index]).mark_ready(key)

    @property
    def is_walked(self) -> bool:
        """Whether somebody looks at keys as they were, also at those that were flushed meanwhile."""
        return self.capture is not None or len(self.walks) > 0

    def begin_capture(self):
        """Begin to take a point in time, now; returns a Capture."""
        if self.capture is not None:
            raise RuntimeError("a capture is already being taken")
        self.capture_number += 1
        self.capture = Capture(self, self.capture_number)
        return self.capture

    def end_capture(self, capture) -> None:
        """A capture is complete or given up."""
        if self.capture is capture:
            self.capture = None

    def restore(self, int db, bytes key, str kind, dict meta, list blocks) -> None:
        """Put back a captured key; ValueError when its parts do not fit together."""
        restore_key(self, db, key, kind, meta, blocks)

    def global_meta(self) -> dict:
        """What belongs to no key, as msgpack-able values."""
        steady_ms = max(self.steady_ms, self.newest_steady_ms)
        meta = {"incarnation": self.incarnation, "steady_ms": steady_ms}
        if self.has_ordering:
            meta["ordering"] = True
        if self.recorded_promise_ms:
            meta["clock"] = self.recorded_promise_ms
        return meta

    def restore_global(self, dict meta) -> None:
        """Take back what global_meta gave."""
        self.incarnation = max(self.incarnation, meta["incarnation"])
        self.note_steady(meta.get("steady_ms", 0))
        self.has_ordering = self.has_ordering or "ordering" in meta
        self.note_promise(meta.get("clock", 0))

    def note_promise(self, uint64_t promised_ms) -> None:
        """Readers may have been promised that no ID up to this millisecond comes in the streams
        that they follow."""
        self.recorded_promise_ms = max(self.recorded_promise_ms, promised_ms)
        self.promised_ms = max(self.promised_ms, promised_ms)
