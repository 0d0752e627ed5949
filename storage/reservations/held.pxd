from libc.stdint cimport uint32_t, uint64_t

from millstream.encoding cimport Slice
from millstream.entry_id cimport EntryId
from millstream.storage.reservations.held_segment_list cimport SegmentList
from millstream.storage.reservations.held_segments cimport Run, Slot, Writer
from millstream.storage.reservations.held_writers cimport Writers
from millstream.storage.streams.stream cimport RESERVING, Stream


cdef class Held:
    cdef readonly SegmentList segments
    cdef readonly Writers writers
    cdef readonly uint64_t reservations  # the open ones
    cdef EntryId last  # the last ID handed out; valid while there are reservations
    cdef readonly uint64_t entries
    cdef readonly uint64_t size_bytes
    cdef readonly uint64_t next_deadline_ms  # a lower bound of the ends of all leases
    cdef readonly uint64_t scheduled_ms  # the next timer of the stream; the largest number: none
    cdef list moments_ms  # all timers of the stream, the latest first

    cdef int reserve(self, Stream stream, EntryId first, uint64_t count, Writer writer,
                     uint32_t lease_ms, uint64_t deadline_ms) except -1
    cdef inline int hand_out(self, Slot made, EntryId entry_id, Writer writer,
                             uint32_t lease_ms, uint64_t deadline_ms) noexcept
    cdef int hold(self, EntryId entry_id, Slice* items, Py_ssize_t count) except -1
    cdef int complete(self, Stream stream, Slot reservation, Py_ssize_t index, Slice* items,
                      Py_ssize_t count) except -1
    cdef int settle(self, Slot reservation) except -1
    cdef int release(self, Stream stream) except -1
    cdef int release_run(self, Stream stream, Run run) except -1
    cdef list due(self, uint64_t steady_ms)
    cpdef int note_moment(self, uint64_t moment_ms) except -1
    cdef int pass_moments(self, uint64_t steady_ms) except -1
    cdef int renew(self, Slot reservation, uint32_t lease_ms, uint64_t steady_ms) except -1
    cdef int check_order(self, Stream stream) except -1


cdef inline EntryId handed_out(Stream stream) noexcept:
    """The last ID that was given to an entry or a reservation of the stream."""
    cdef EntryId last
    if stream.restrictions & RESERVING:
        return (<Held>stream.held).last
    last.ms = stream.last_ms
    last.seq = stream.last_seq
    return last
