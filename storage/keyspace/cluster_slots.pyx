# cython: language_level=3, wraparound=False, initializedcheck=False
"""The cluster slot of a key, as Redis Cluster computes it.

It is the CRC-16 (XMODEM) of the key, or of its hash tag, modulo 16,384. The hash tag is the text between
the first ``{`` and the next ``}``, if it is not empty: keys with the same tag are in the same slot. Four
bytes are processed in one step, with a table for each of them.
"""

from libc.stdint cimport uint16_t, uint32_t
from libc.string cimport memchr

cdef enum:
    POLYNOMIAL = 0x1021
    TABLES = 4

CLUSTER_SLOTS = CLUSTER_SLOT_COUNT

# TABLES_OF_BYTES[n][b] is the checksum of the byte b and n zero bytes after it.
cdef uint16_t[TABLES][256] TABLES_OF_BYTES


cdef void make_tables() noexcept:
    cdef int byte, _bit, table
    cdef uint32_t crc
    for byte in range(256):
        crc = byte << 8
        for _bit in range(8):
            crc = crc << 1 ^ (POLYNOMIAL if crc & 0x8000 else 0)
        TABLES_OF_BYTES[0][byte] = <uint16_t>crc
    for table in range(1, TABLES):
        for byte in range(256):
            crc = TABLES_OF_BYTES[table - 1][byte]
            TABLES_OF_BYTES[table][byte] = <uint16_t>(crc << 8 ^ TABLES_OF_BYTES[0][crc >> 8])


make_tables()


cdef uint32_t crc16(const unsigned char* at, Py_ssize_t size) noexcept nogil:
    cdef uint32_t crc = 0
    while size >= TABLES:
        crc = (TABLES_OF_BYTES[3][at[0] ^ crc >> 8] ^ TABLES_OF_BYTES[2][at[1] ^ crc & 0xff]
               ^ TABLES_OF_BYTES[1][at[2]] ^ TABLES_OF_BYTES[0][at[3]])
        at += TABLES
        size -= TABLES
    while size > 0:
        crc = (crc << 8 & 0xffff) ^ TABLES_OF_BYTES[0][crc >> 8 ^ at[0]]
        at += 1
        size -= 1
    return crc


cdef uint32_t cluster_slot(const char* key, Py_ssize_t size) noexcept nogil:
    """The slot of the key in these bytes."""
    cdef const char* tag
    cdef const char* end
    cdef const char* found = <const char*>memchr(key, c'{', size) if size > 0 else NULL
    if found != NULL:
        tag = found + 1
        end = <const char*>memchr(tag, c'}', size - (tag - key))
        if end != NULL and end > tag:
            key = tag
            size = end - tag
    return crc16(<const unsigned char*>key, size) & (CLUSTER_SLOT_COUNT - 1)


def cluster_slot_of(bytes key not None) -> int:
    """The slot of a key."""
    return cluster_slot(key, len(key))
