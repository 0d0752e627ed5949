from libc.stdint cimport int64_t


# A number in a value or a bound: a 64-bit integer, or any other decimal as a double.
cdef struct Number:
    int64_t integer
    double real
    bint is_integer


# A bound. For integers, it is `floor`, or lies between `floor` and the next integer (`has_rest`), or
# is less or greater than all of them (`beyond` is -1 or 1).
cdef struct Bound:
    Number number
    int64_t floor
    bint has_rest
    int beyond


cdef bint read_bound(bytes text, Bound* out) except -1
cdef int compare_to_bound(const Number* one, const Bound* bound) noexcept nogil
cdef bint read_number(const char* text, Py_ssize_t size, Number* out) except -1
cdef int compare_numbers(const Number* one, const Number* other) noexcept nogil
