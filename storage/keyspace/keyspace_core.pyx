# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The parts of a keyspace that appends and reads use: stream look-ups, ready marks, and timer
requests.

The classes of `keyspace` extend these two classes in Python. Code that will change a stream must
get it from `writable_at` or `writable_stream`: while a snapshot is taken, these first capture a key
that is not captured yet (storage/capture/capture).
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport UINT64_MAX as NEVER, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from millstream.encoding cimport Slice
from millstream.storage.groups.due_index cimport bound_of
from millstream.storage.groups.group cimport Group, GroupRules, keys_of, waits_for_due
from millstream.storage.groups.pending cimport EXPIRE, WAKE, saturating_add
from millstream.storage.streams.retention cimport age_trim_ms
from millstream.storage.streams.schedule cimport Schedule, Scheduled
from millstream.storage.streams.stream cimport Stream

from millstream.errors import WRONG_TYPE, CommandError


def patched(bytes old not None, Py_ssize_t offset, bytes part not None) -> bytes:
    """A string with `part` at an offset, padded with zeros if it was shorter. Large paddings cost
    nothing: memory from the operating system is zero at first use."""
    cdef Py_ssize_t end = offset + len(part)
    cdef bytes made = bytes(max(end, len(old)))
    memcpy(PyBytes_AS_STRING(made), PyBytes_AS_STRING(old), len(old))
    memcpy(PyBytes_AS_STRING(made) + offset, PyBytes_AS_STRING(part), len(part))
    return made


cdef class DatabaseCore:
    """Looking up the values of one database."""

    def __init__(self, KeyspaceCore keyspace not None, int index):
        self.keyspace = keyspace
        self.index = index
        self.waiting = {}

    cdef bytes key_of(self, Slice* key):
        """The key as bytes; the object of the last key is reused if it is equal."""
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
        return self.find(PyBytes_FromStringAndSize(key.ptr, key.size))

    cdef Stream stream_at(self, Slice* key):
        """Like `stream`, for a key in a request."""
        return self.find_at(key)

    cdef Stream writable_at(self, Slice* key):
        """Like `writable_stream`, for a key in a request."""
        cdef Stream stream = self.find_at(key)
        if self.keyspace.capture is not None and stream is not None:
            self.capture_stream(self.key_of(key), stream)
        return stream

    cdef Stream find(self, bytes key):
        """Like `stream`."""
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

    cdef bint put_new(self, bytes key, Stream stream) except -1:
        """Like `put` while data is loaded. False, without a change, if more work is needed: the key
        exists, or there is a walk."""
        if self.keyspace.walks or key in self.table:
            return False
        self.slots.add_key(key)
        self.table[key] = stream
        stream.used_s = self.keyspace.now_s
        stream.capture_mark = self.keyspace.capture_number
        return True

    cpdef Stream stream(self, bytes key):
        """The stream at a key; None when there is none; WRONGTYPE for another type of value."""
        return self.find(key)

    cpdef Stream writable_stream(self, bytes key):
        """Like `stream`, for a caller that will change the stream."""
        cdef Stream stream = self.find(key)
        if stream is not None and self.keyspace.capture is not None:
            self.capture_stream(key, stream)
        return stream

    cdef int capture_stream(self, bytes key, Stream stream) except -1:
        """Capture a stream that will change, unless it was captured before or created later."""
        if stream.capture_mark != self.keyspace.capture_number:
            self.keyspace.capture.before_change(self, key, stream)
        return 0

    def get(self, bytes key not None):
        """The value at a key: a Stream, bytes, or None. Does not count as a use (OBJECT
        IDLETIME)."""
        return self.value_of(key)

    cdef value_of(self, bytes key):
        value = self.table.get(key)
        if value is None or (self.expiries and self.has_expired(key)):
            return None
        return self.settle(key) if self.append_buffers and key in self.append_buffers else value

    def read(self, bytes key not None):
        """Like `get`, but counts as a look-up and as a use of the key."""
        value = self.value_of(key)
        if value is None:
            self.keyspace.misses += 1
            return None
        self.keyspace.hits += 1
        if self.keyspace.touching:
            self.note_use(key, value)
        return value

    def use(self, bytes key not None):
        """Like `get`, but counts as a use of the key."""
        value = self.value_of(key)
        if value is not None and self.keyspace.touching:
            self.note_use(key, value)
        return value

    cpdef int note_use(self, bytes key, value) except -1:
        """Record that the value at a key is used now."""
        if isinstance(value, Stream):
            (<Stream>value).used_s = self.keyspace.now_s
        else:
            self.used_s[key] = self.keyspace.now_s
        return 0

    cpdef int forget_cached(self) noexcept:
        """Invalidate the cached key: its value may have changed, and its stream may be deleted."""
        self.cached_key = None
        self.cached_stream = None
        return 0

    cpdef bint has_expired(self, bytes key) except -1:
        """True if a key has expired; it is then deleted, unless changes are not allowed now."""
        cdef KeyspaceCore keyspace = self.keyspace
        expiry_ms = self.expiries.get(key)
        if expiry_ms is None or not keyspace.expiring or <uint64_t>expiry_ms > keyspace.now_ms:
            return False
        if keyspace.may_delete:
            self.drop_expired(key)
        return True

    cpdef bint replace_string(self, bytes key, bytes value, bint keep_expiry) except -1:
        """Replace a string by a string. False, without a change, if there is another value or if
        more work is needed: a snapshot, a watch, an expiry to remove."""
        if self.watched or self.append_buffers or self.keyspace.capture is not None or (
                self.expiries and not keep_expiry and key in self.expiries):
            return False
        if not isinstance(self.table.get(key), bytes):
            return False
        # Only streams are cached, and a string has no timers.
        self.table[key] = value
        self.used_s[key] = self.keyspace.now_s
        self.mark_ready(key)
        return True

    cpdef bint extend_expiry(self, bytes key, int64_t at_ms) except -1:
        """Set an expiry that is not before the key's current one. False, without a change, if the
        key has none or if more work is needed: a snapshot, a watch."""
        if self.watched or self.keyspace.capture is not None:
            return False
        before_ms = self.expiries.get(key)
        if before_ms is None or at_ms < <int64_t>before_ms:
            return False
        self.expiries[key] = at_ms
        return True

    cdef int mark_ready_at(self, Slice* key) except -1:
        if self.waiting:
            self.mark_ready(self.key_of(key))
        return 0

    cpdef int note_lease_moment(self, bytes key, Held held, uint64_t moment_ms) except -1:
        """Schedule a time at which a lease of a stream may end, unless an earlier time is
        scheduled."""
        if moment_ms < held.scheduled_ms:
            held.note_moment(moment_ms)
            self.keyspace.timer_requests.append((moment_ms, self.index, key, None))
        return 0

    cpdef int mark_ready(self, bytes key) except -1:
        """Mark a key ready: blocked readers of this key may find something now."""
        if key in self.waiting:
            self.keyspace.ready.append((self.index, key))
        return 0


cdef uint64_t rules_moment(Group group, uint64_t now_ms) noexcept:
    """The next time at which the rules of a group may change something: a copy of dead entries, the end
    of its time to live, the end of a pause in which clients wait, a look at its consumers."""
    cdef GroupRules rules = group.rules
    cdef uint64_t moment = rules.copy_at_ms
    if rules.ttl_ms and not group.pending.blocked_clients:
        moment = min(moment, saturating_add(rules.last_used_ms, rules.ttl_ms))
    if group.pending.blocked_clients and now_ms < rules.paused_until_ms:
        moment = min(moment, rules.paused_until_ms)
    if rules.consumer_ttl_ms:
        moment = min(moment, rules.consumer_check_ms)
    return moment


cdef class KeyspaceCore:
    """All databases and their common state; `keyspace.Keyspace` explains the attributes."""

    def __init__(self, uint32_t node_entries, uint32_t node_bytes, retention_schedule,
                 firing_schedule):
        self.node_entries = node_entries
        self.node_bytes = node_bytes
        self.ready = []
        self.timer_requests = []
        self.deferred = []
        self.settling = []
        self.retention_schedule = retention_schedule
        self.firing_schedule = firing_schedule
        self.touching = True
        self.may_delete = True
        self.active_expiry = True

    def open_reservations(self) -> int:
        """The number of open reservations in all databases."""
        cdef DatabaseCore db
        cdef uint64_t count = 0
        for db in self.databases:
            count += db.reservations
        return count

    def scheduled_entries(self) -> int:
        """The number of scheduled entries in all databases."""
        cdef DatabaseCore db
        cdef uint64_t count = 0
        for db in self.databases:
            count += db.scheduled
        return count

    def is_walked(self) -> bool:
        """True if a snapshot or a reply reads keys at an earlier moment, including flushed keys."""
        return self.capture is not None or len(self.walks) > 0

    def databases_with_keys(self) -> list:
        cdef DatabaseCore db
        cdef list found = []
        for db in self.databases:
            if db.table:
                found.append(db)
        return found

    def set_time(self, uint64_t now_ms, steady_ms=None) -> None:
        """Set the time for the expiry of keys, and the time for groups, by default the same."""
        self.set_now(now_ms, now_ms if steady_ms is None else steady_ms)

    cdef int set_now(self, uint64_t now_ms, uint64_t steady_ms) noexcept:
        self.now_ms = now_ms
        self.steady_ms = steady_ms
        self.now_s = <uint32_t>(steady_ms // 1000)
        return 0

    cpdef int note_steady(self, uint64_t steady_ms) noexcept:
        """Note that the loaded data was recorded at this time or later."""
        self.newest_steady_ms = max(self.newest_steady_ms, steady_ms)
        return 0

    cpdef uint64_t next_incarnation(self, uint64_t now_ms) except? 0:
        """A number for a new stream, above all earlier ones. It comes from the clock, so it
        increases even without a journal that has the last one."""
        self.incarnation = max(self.incarnation + 1, now_ms << 10)
        return self.incarnation

    cpdef int schedule_trim(self, int db_index, bytes key, Stream stream) except -1:
        """Schedule the next time at which a stream's policy evicts entries for their age."""
        cdef uint64_t moment_ms = age_trim_ms(stream, self.now_ms)
        if moment_ms < stream.policy.next_check_ms:
            stream.policy.next_check_ms = self.note_trim(moment_ms, db_index, key)
        return 0

    def trim_soon(self, int db_index, bytes key not None, Stream stream not None) -> None:
        """Schedule a stream that has a policy for the next run of the timer."""
        stream.policy.next_check_ms = self.note_trim(AT_ONCE, db_index, key)

    cdef uint64_t note_trim(self, uint64_t moment_ms, int db_index, bytes key) except? 0:
        self.expiry_noted = True
        return self.retention_schedule.note(moment_ms, db_index, key)

    cpdef int note_firing(self, int db_index, bytes key, Schedule schedule) except -1:
        """Schedule the time at which the first scheduled entry of a stream is due, unless an earlier
        time is scheduled."""
        cdef Scheduled entry = schedule.first()
        if entry is not None and entry.ticket.ms < schedule.noted_ms:
            self.note_firing_at(db_index, key, schedule, entry.ticket.ms)
        return 0

    cdef int note_firing_at(self, int db_index, bytes key, Schedule schedule,
                            uint64_t moment_ms) except -1:
        """Schedule a time for the scheduled entries of a stream, in place of the one before."""
        if schedule.noted_ms != NEVER:
            self.firing_schedule.forget(schedule.noted_ms, db_index, key)
        self.expiry_noted = True
        schedule.noted_ms = self.firing_schedule.note(moment_ms, db_index, key)
        return 0

    cpdef int schedule(self, int db_index, bytes key, group) except -1:
        """Schedule the next time at which a group may have an automatic change."""
        return self.schedule_after(db_index, key, group, 0)

    cpdef int schedule_after(self, int db_index, bytes key, group, uint64_t past_ms) except -1:
        """Like `schedule`, without retries and claims due up to past_ms, which were processed."""
        cdef Group timed = group
        cdef uint64_t moment = bound_of(timed.pending.records, EXPIRE)
        cdef uint64_t wake = bound_of(timed.pending.records, WAKE)
        cdef uint64_t claim = timed.pending.claim_bound()
        if past_ms < wake < moment and waits_for_due(timed):
            moment = wake
        if past_ms < claim < moment:
            moment = claim
        if timed.rules is not None:
            moment = min(moment, rules_moment(timed, self.steady_ms))
        if moment <= past_ms and keys_of(timed) is not None and keys_of(timed).ends_wait:
            moment = past_ms + LOOK_AGAIN_MS
        if moment < timed.scheduled_ms:
            timed.scheduled_ms = moment
            self.timer_requests.append((moment, db_index, key, timed.name))
        return 0

    def note_promise(self, uint64_t promised_ms) -> None:
        """Note that readers may have the promise that no ID up to this millisecond will be added to
        the streams that they follow."""
        self.recorded_promise_ms = max(self.recorded_promise_ms, promised_ms)
        self.promised_ms = max(self.promised_ms, promised_ms)
