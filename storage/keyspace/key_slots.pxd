from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    SLOT_COUNT = 65536
    WORD_BITS = 64


ctypedef PyObject* Key

# The keys of a slot that has more than one.
cdef struct Several:
    uint32_t count
    uint32_t capacity
    Key[1] keys


cdef class KeySlots:
    # Per slot NULL, a key, or the address of a Several plus 1.
    cdef uint64_t* slots
    cdef uint64_t* used  # a bit for each slot
    cdef uint32_t used_count
    cdef readonly uint64_t keys
    cdef bint clustered

    cdef int make_table(self) except -1
    cdef uint32_t slot_for(self, bytes key) except? 0xffffffff
    cdef uint32_t add_key(self, bytes key) except? 0xffffffff
    cdef inline Key* keys_at(self, uint32_t slot, uint32_t* count) noexcept
    cdef uint32_t next_used(self, uint32_t slot) noexcept
    cdef uint32_t nth_used(self, uint32_t n) noexcept
    cdef void empty_slot(self, uint32_t slot) noexcept
    cdef list list_keys(self, uint32_t slot)
