from libc.stdint cimport int64_t


# A number in a value or a bound: a 64-bit integer, or any other decimal as a double.
cdef struct Number:
    int64_t integer
    double real
    bint is_integer


cdef bint read_number(const char* text, Py_ssize_t size, Number* out) except -1
cdef int compare_numbers(const Number* one, const Number* other) noexcept nogil
