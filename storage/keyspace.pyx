# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""All keys of all databases, and how a point in time of them is captured while they change.

A value is a Stream or the bytes of a string. Whoever is about to change a stream gets it from
`writable_at` or `writable_stream`: while a snapshot is being taken, that is where a key not yet
captured is captured as it was. So a snapshot needs no fork and no pause: it walks the keys in
slices, and writers keep ahead of it.

SCAN must return every key that is there throughout. Each key has a fixed slot by its checksum and a
cursor is a slot number, so no change elsewhere can move a key from behind a cursor to before it.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcmp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from bisect import bisect_left
from zlib import crc32

from millstream.encoding cimport Slice
from millstream.storage.group cimport Group
from millstream.storage.stream cimport Stream

from millstream.errors import WRONG_TYPE, CommandError

cdef int SLOTS = 65536
cdef uint64_t NEVER = 0xffffffffffffffffULL


cdef class Captured:
    """One key as it was when the capture began."""

    def __init__(self, int db, bytes key, str kind, dict meta, list blocks):
        self.db = db
        self.key = key
        self.kind = kind
        self.meta = meta
        self.blocks = blocks


cdef class Capture:
    """A point in time of a keyspace, taken in steps."""

    def __init__(self, Keyspace keyspace, uint64_t number):
        self.keyspace = keyspace
        self.number = number
        # The table objects themselves: FLUSHALL gives a database a new one and leaves us the old.
        self.tables = [(<Database>db).table for db in keyspace.databases]
        # Slots that are added later hold new keys only.
        self.slots = [(<Database>db).slots for db in keyspace.databases]
        self.early = []
        self.done = [set() for _ in keyspace.databases]
        self.db = -1
        self.slot_numbers = iter(())
        self.keys = iter(())

    cdef int before_change(self, Database database, bytes key, value) except -1:
        """A key is about to change: keep it as it is (None: it is not there), unless that was done
        or its table is younger than this point in time. What is put there from now on does not
        belong to this point in time."""
        cdef Stream stream
        cdef int db = database.index
        if database.table is not self.tables[db]:
            return 0
        if isinstance(value, Stream):
            stream = value
            if stream.capture_mark != self.number:
                self.early.append(self.take(db, key, stream))
        elif key not in <set>self.done[db]:
            (<set>self.done[db]).add(key)
            if value is not None:
                self.early.append(Captured(db, key, "string", {"value": value}, []))
        return 0

    cdef take(self, int db, bytes key, Stream stream):
        stream.capture_mark = self.number
        (<set>self.done[db]).add(key)
        meta, blocks = stream.dump(True)
        return Captured(db, key, "stream", meta, blocks)

    def step(self, Py_ssize_t max_keys) -> list[Captured] | None:
        """The next keys, at most max_keys; None at the end. Also looks at about that many keys at
        most: an empty list says that they had been taken before."""
        cdef list found = self.early[-max_keys:]
        cdef Py_ssize_t left = max_keys - len(found)
        del self.early[-max_keys:]
        while left > 0:
            left -= 1
            self.looked_at += 1
            key = next(self.keys, None)
            if key is None:
                if not self.next_slot():
                    return found or None
                continue
            value = self.tables[self.db].get(key)
            if isinstance(value, Stream):
                if (<Stream>value).capture_mark != self.number:
                    found.append(self.take(self.db, key, value))
            elif value is not None and key not in <set>self.done[self.db]:
                (<set>self.done[self.db]).add(key)
                found.append(Captured(self.db, key, "string", {"value": value}, []))
        return found

    cdef bint next_slot(self) except -1:
        """Go on with the keys of the next slot: few, so they are listed at once."""
        number = next(self.slot_numbers, None)
        while number is None:
            if self.db + 1 >= len(self.tables):
                return False
            self.db += 1
            self.slot_numbers = iter(list(self.slots[self.db]))
            number = next(self.slot_numbers, None)
        self.keys = iter(list((<dict>self.slots[self.db]).get(number, ())))
        return True

    def close(self) -> None:
        """The capture is complete or given up."""
        if self.keyspace.capture is self:
            self.keyspace.capture = None


cdef class Database:
    """The keys of one database. `waiting` maps keys to what blocked clients wait on them with."""

    def __init__(self, Keyspace keyspace, int index):
        self.keyspace = keyspace
        self.index = index
        self.table = {}
        self.slots = {}
        self.waiting = {}

    # ------------------------------------------------------------ streams, from argument views

    cdef bytes key_of(self, Slice* key):
        """The key as bytes; the object of the last one is used again."""
        cdef bytes cached = self.cached_key
        if cached is not None and PyBytes_GET_SIZE(cached) == key.size and memcmp(
                PyBytes_AS_STRING(cached), key.ptr, key.size) == 0:
            return cached
        return PyBytes_FromStringAndSize(key.ptr, key.size)

    cdef Stream stream_at(self, Slice* key):
        """The stream at a key, None when there is none; WRONGTYPE when it is something else."""
        cdef bytes cached = self.cached_key
        if cached is not None and PyBytes_GET_SIZE(cached) == key.size and memcmp(
                PyBytes_AS_STRING(cached), key.ptr, key.size) == 0:
            return self.cached_stream
        return self.stream(PyBytes_FromStringAndSize(key.ptr, key.size))

    cdef Stream writable_at(self, Slice* key):
        """As stream_at, for a caller that will change the stream."""
        cdef Stream stream = self.stream_at(key)
        if self.keyspace.capture is not None and stream is not None:
            self.keyspace.capture.before_change(self, self.cached_key, stream)
        return stream

    cpdef Stream stream(self, bytes key):
        """The stream at a key, None when there is none; WRONGTYPE when it is something else."""
        value = self.table.get(key)
        if value is None:
            return None
        if not isinstance(value, Stream):
            raise CommandError(WRONG_TYPE)
        self.cached_key = key
        self.cached_stream = value
        return value

    cpdef Stream writable_stream(self, bytes key):
        """As `stream`, for a caller that will change it."""
        cdef Stream stream = self.stream(key)
        if stream is not None and self.keyspace.capture is not None:
            self.keyspace.capture.before_change(self, key, stream)
        return stream

    cpdef Stream make_stream(self, bytes key, uint64_t incarnation):
        """Put an empty stream at a free key."""
        cdef Stream stream = Stream(incarnation)
        stream.capture_mark = self.keyspace.capture_number
        self.before_change(key)
        if incarnation > self.keyspace.incarnation:
            self.keyspace.incarnation = incarnation
        self.put(key, stream)
        return stream

    cdef int forget_cached(self) noexcept:
        """The key last asked for may have another value now, and its stream may be gone."""
        self.cached_key = None
        self.cached_stream = None
        return 0

    # ------------------------------------------------------------ keys

    def get(self, bytes key not None):
        """The value at a key: a Stream, bytes, or None."""
        return self.table.get(key)

    def set(self, bytes key not None, value) -> None:
        """Put bytes or a Stream at a key, whatever was there."""
        self.before_change(key)
        self.put(key, value)
        self.mark_ready(key)

    cdef int put(self, bytes key, value) except -1:
        if key not in self.table:
            self.slots.setdefault(crc32(key) & (SLOTS - 1), []).append(key)
        self.table[key] = value
        self.forget_cached()
        return 0

    def delete(self, bytes key not None) -> bool:
        """Remove a key; False when it was not there."""
        if key not in self.table:
            return False
        self.before_change(key)
        del self.table[key]
        self.forget_cached()
        slot = crc32(key) & (SLOTS - 1)
        keys = self.slots[slot]
        keys.remove(key)
        if not keys:
            del self.slots[slot]
        self.mark_ready(key)
        return True

    def clear(self) -> int:
        """Remove every key; returns how many there were."""
        count = len(self.table)
        self.table = {}
        self.slots = {}
        self.forget_cached()
        for key in self.waiting:
            self.mark_ready(key)
        return count

    cpdef int before_change(self, bytes key) except -1:
        """Call before the value at a key is replaced or removed."""
        if self.keyspace.capture is not None:
            self.keyspace.capture.before_change(self, key, self.table.get(key))
        return 0

    def keys(self):
        """All keys; the database must not change while they are walked."""
        return self.table.keys()

    def scan(self, uint64_t cursor, uint64_t count) -> tuple[int, list[bytes]]:
        """Keys from a cursor on (0 starts), about `count`, and the next cursor, 0 at the end."""
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

    def __len__(self) -> int:
        return len(self.table)

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

    `dirty` counts changes; `ready` and `agenda` collect, for the server, keys whose waiting readers
    are to be tried again and the moments at which groups have something to do; `now_ms` is the time
    restored groups count from; node_entries and node_bytes are the limits of a node.
    """

    def __init__(self, int databases=16, uint32_t node_entries=100, uint32_t node_bytes=4096):
        self.node_entries = node_entries
        self.node_bytes = node_bytes
        self.ready = []
        self.agenda = []
        self.databases = [Database(self, i) for i in range(databases)]

    cpdef uint64_t next_incarnation(self, uint64_t now_ms) except? 0:
        """A number for a new stream, above all given before; from the clock, so that it rises also
        where no journal remembers the last one."""
        self.incarnation = max(self.incarnation + 1, now_ms << 10)
        return self.incarnation

    cpdef int schedule(self, int db_index, bytes key, Group group) except -1:
        """Note the next moment at which a group may have something to do by itself."""
        return self.schedule_after(db_index, key, group, 0)

    cpdef int schedule_after(self, int db_index, bytes key, Group group,
                             uint64_t past_ms) except -1:
        """As `schedule`; retries due up to past_ms have had their turn and need no moment."""
        cdef uint64_t moment = group.expiry_bound()
        cdef uint64_t wake = group.wake_bound()
        cdef uint64_t end
        if group.retry_waiters and past_ms < wake < moment:
            moment = wake
        if group.ttl_ms and not group.blocked_clients:
            end = group.last_used_ms + group.ttl_ms
            if end >= group.last_used_ms and end < moment:
                moment = end
        if moment < group.scheduled_ms:
            group.scheduled_ms = moment
            self.agenda.append((moment, db_index, key, group.name))
        return 0

    def mark_ready(self, int db_index, bytes key) -> None:
        """Something that blocked readers of this key may wait for has happened."""
        (<Database>self.databases[db_index]).mark_ready(key)

    def begin_capture(self) -> Capture:
        """Begin to take a point in time: now."""
        if self.capture is not None:
            raise RuntimeError("a capture is already being taken")
        self.capture_number += 1
        self.capture = Capture(self, self.capture_number)
        return self.capture

    def restore(self, int db, bytes key, str kind, dict meta, list blocks) -> None:
        """Put back a captured key; ValueError when its parts do not fit together."""
        if not 0 <= db < len(self.databases):
            raise ValueError(f"it belongs to database {db}; there are {len(self.databases)}")
        if kind == "stream":
            value = Stream.load(meta, blocks, self.now_ms)
        elif kind == "string":
            value = meta["value"]
        else:
            raise ValueError(f"values of kind {kind!r} are not known to this version")
        (<Database>self.databases[db]).put(key, value)
        if kind == "stream":
            for group in (<Stream>value).groups.values():
                self.schedule(db, key, group)

    def global_meta(self) -> dict:
        """What belongs to no key, as msgpack-able values."""
        return {"incarnation": self.incarnation}

    def restore_global(self, dict meta) -> None:
        """Take back what global_meta gave."""
        self.incarnation = max(self.incarnation, meta["incarnation"])
