from libc.stdint cimport uint8_t, uint64_t

cdef uint64_t crc_of(const uint8_t* at, Py_ssize_t size, uint64_t crc) noexcept nogil
cdef bytes decompress(const uint8_t* packed, Py_ssize_t packed_size, uint64_t size)
