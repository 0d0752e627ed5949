from millstream.entry_id cimport EntryId
from millstream.storage.reservations.held_segments cimport Slot, Writer


cdef class SharedHeld:
    cdef EntryId last
    cdef EntryId first_reserved
    cdef bint has_forgotten
    cdef list writers
    cdef dict numbers
    cdef list segments

    cdef list row_of(self, Slot slot)
    cdef object number_of(self, Writer writer)
