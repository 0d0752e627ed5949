from libc.stdint cimport uint8_t, uint64_t

cdef uint64_t crc_of(const uint8_t* at, Py_ssize_t size, uint64_t crc) noexcept nogil
cdef bint unpack(const uint8_t* at, Py_ssize_t packed_size, uint8_t* to,
                 Py_ssize_t size) noexcept nogil

cdef enum:
    # LZF: three bytes expand to at most 264 bytes.
    GROWTH_MAX = 88
