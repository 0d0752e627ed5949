from libc.stdint cimport int64_t, uint32_t, uint64_t

from millstream.entry_id cimport EntryId
from millstream.storage.blocks.entry_filter cimport EntryFilter
from millstream.storage.blocks.field_reader cimport FieldReader
from millstream.storage.blocks.layout cimport Entry, View
from millstream.storage.groups.key_order cimport KeyOrder


cdef struct PickingLimits:
    # The most parked entries of a group.
    uint32_t parked_max


cdef PickingLimits limits


cdef class Picking:
    cdef readonly EntryFilter filter
    # b"NONE", b"ALL" or b"FIELD".
    cdef readonly bytes order
    cdef readonly bytes field
    cdef readonly uint32_t run
    # None without an order.
    cdef readonly KeyOrder keys
    cdef FieldReader reader
    # The number of entries that were passed over since the offset was recorded, and when that was.
    cdef public uint64_t unrecorded
    cdef public uint64_t recorded_ms
    # With such entries, the offset and the count of entries read that were recorded.
    cdef EntryId recorded_offset
    cdef int64_t recorded_read
    # True if a read has ended before it has looked at all new entries.
    cdef public bint is_cut

    cdef bint has_key(self, const View* view, const Entry* entry, uint64_t* hash) except -1
