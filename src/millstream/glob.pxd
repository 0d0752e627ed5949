cdef class Pattern:
    cdef bytes pattern
    cdef bint any_case
