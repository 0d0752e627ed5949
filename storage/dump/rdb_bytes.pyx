# cython: language_level=3, cdivision=True, initializedcheck=False
"""The checksum and the compression of Redis' dump format: CRC-64 and LZF.

Both loop over every byte: in plain Python the checksum of a 100 MB string alone would take ten
seconds. Existing packages have no wheels, or no CRC with Redis' polynomial.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from millstream.errors import PayloadError

cdef enum:
    # LZF: a match is 3 to 264 bytes long and begins at most 8192 bytes before its copy. A run of
    # literal bytes has at most 32.
    MATCH_MIN = 3
    MATCH_MAX = 264
    DISTANCE_MAX = 8192
    RUN_MAX = 32
    HASH_BITS = 13
    # Three bytes expand to at most 264 bytes.
    GROWTH_MAX = 88

# Jones' polynomial, with its bits reversed.
cdef uint64_t POLYNOMIAL = 0x95ac9329ac4bc9b5ULL
cdef uint64_t[8][256] TABLE


cdef void make_table() noexcept:
    cdef uint64_t crc
    cdef int i, j, _
    for i in range(256):
        crc = i
        for _ in range(8):
            crc = (crc >> 1) ^ POLYNOMIAL if crc & 1 else crc >> 1
        TABLE[0][i] = crc
    for j in range(1, 8):
        for i in range(256):
            crc = TABLE[j - 1][i]
            TABLE[j][i] = (crc >> 8) ^ TABLE[0][crc & 255]


make_table()


cdef uint64_t crc_of(const uint8_t* at, Py_ssize_t size, uint64_t crc) noexcept nogil:
    cdef uint64_t word
    while size >= 8:
        memcpy(&word, at, 8)
        word ^= crc
        crc = (TABLE[7][word & 255] ^ TABLE[6][(word >> 8) & 255]
               ^ TABLE[5][(word >> 16) & 255] ^ TABLE[4][(word >> 24) & 255]
               ^ TABLE[3][(word >> 32) & 255] ^ TABLE[2][(word >> 40) & 255]
               ^ TABLE[1][(word >> 48) & 255] ^ TABLE[0][word >> 56])
        at += 8
        size -= 8
    while size > 0:
        crc = (crc >> 8) ^ TABLE[0][(crc ^ at[0]) & 255]
        at += 1
        size -= 1
    return crc


def crc64(bytes data not None, uint64_t crc=0, Py_ssize_t start=0, Py_ssize_t end=-1) -> int:
    """The checksum of a dump over data[start:end], after the bytes that gave `crc`."""
    if end < 0 or end > len(data):
        end = len(data)
    if start < 0 or start > end:
        raise ValueError("start is not within the data")
    return crc_of(<const uint8_t*>PyBytes_AS_STRING(data) + start, end - start, crc)


# ---------------------------------------------------------------- LZF

cdef inline uint32_t hash_of(const uint8_t* at) noexcept nogil:
    cdef uint32_t three = at[0] | (<uint32_t>at[1] << 8) | (<uint32_t>at[2] << 16)
    return (three * 2654435761U) >> (32 - HASH_BITS)


cdef uint8_t* put_run(uint8_t* to, const uint8_t* run, Py_ssize_t size,
                      const uint8_t* end) noexcept nogil:
    """Write a run of literal bytes; NULL when there is not enough space."""
    cdef Py_ssize_t some
    while size:
        some = min(size, RUN_MAX)
        if end - to < some + 1:
            return NULL
        to[0] = <uint8_t>(some - 1)
        memcpy(to + 1, run, some)
        to += some + 1
        run += some
        size -= some
    return to


cdef uint8_t* put_match(uint8_t* to, Py_ssize_t distance, Py_ssize_t size,
                        const uint8_t* end) noexcept nogil:
    """Write a match of `size` bytes from `distance` bytes before; NULL when there is not enough
    space."""
    if end - to < 3:
        return NULL
    distance -= 1
    size -= 2
    if size < 7:
        to[0] = <uint8_t>((size << 5) | (distance >> 8))
        to[1] = <uint8_t>(distance & 255)
        return to + 2
    to[0] = <uint8_t>((7 << 5) | (distance >> 8))
    to[1] = <uint8_t>(size - 7)
    to[2] = <uint8_t>(distance & 255)
    return to + 3


cdef Py_ssize_t pack(const uint8_t* data, Py_ssize_t size, uint8_t* to,
                     Py_ssize_t capacity) noexcept nogil:
    """Compress into `capacity` bytes; return the number of bytes written, 0 when `capacity` is too
    small."""
    cdef uint32_t[1 << HASH_BITS] seen  # the last offset of each hash of three bytes, plus one
    cdef const uint8_t* end = to + capacity
    cdef uint8_t* start = to
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t run = 0
    cdef Py_ssize_t before, most, matched
    cdef uint32_t slot
    memset(seen, 0, sizeof(seen))
    while at + MATCH_MIN <= size:
        slot = hash_of(data + at)
        before = <Py_ssize_t>seen[slot] - 1
        seen[slot] = <uint32_t>(at + 1)
        if before < 0 or at - before > DISTANCE_MAX or data[before] != data[at] or (
                data[before + 1] != data[at + 1] or data[before + 2] != data[at + 2]):
            at += 1
            continue
        most = min(size - at, MATCH_MAX)
        matched = MATCH_MIN
        while matched < most and data[before + matched] == data[at + matched]:
            matched += 1
        to = put_run(to, data + run, at - run, end)
        if to != NULL:
            to = put_match(to, at - before, matched, end)
        if to == NULL:
            return 0
        at += matched
        run = at
    to = put_run(to, data + run, size - run, end)
    return 0 if to == NULL else to - start


def compress(bytes data not None) -> bytes | None:
    """The data as LZF; None when that does not save at least four bytes. For up to 4 GiB."""
    cdef Py_ssize_t size = len(data)
    cdef Py_ssize_t capacity = size - 4
    cdef Py_ssize_t needed
    cdef bytes packed
    if capacity <= 0 or size >= 0xffffffff:
        return None
    packed = PyBytes_FromStringAndSize(NULL, capacity)
    needed = pack(<const uint8_t*>PyBytes_AS_STRING(data), size,
                  <uint8_t*>PyBytes_AS_STRING(packed), capacity)
    return packed[:needed] if needed else None


cdef bint unpack(const uint8_t* at, Py_ssize_t packed_size, uint8_t* to,
                 Py_ssize_t size) noexcept nogil:
    """Decompress to exactly `size` bytes; False when the data is invalid."""
    cdef const uint8_t* end = at + packed_size
    cdef uint8_t* start = to
    cdef uint8_t* limit = to + size
    cdef const uint8_t* source
    cdef Py_ssize_t length, distance
    while at < end:
        length = at[0]
        if length < RUN_MAX:
            length += 1
            if end - at <= length or limit - to < length:
                return False
            memcpy(to, at + 1, length)
            at += length + 1
            to += length
            continue
        distance = (length & 31) << 8
        length >>= 5
        at += 1
        if length == 7:
            if at >= end:
                return False
            length += at[0]
            at += 1
        if at >= end:
            return False
        distance += at[0] + 1
        at += 1
        length += 2
        if to - start < distance or limit - to < length:
            return False
        source = to - distance
        while length:
            to[0] = source[0]
            to += 1
            source += 1
            length -= 1
    return to == limit


cdef bytes decompress(const uint8_t* packed, Py_ssize_t packed_size, uint64_t size):
    """Decompress to `size` bytes; PayloadError when the data is invalid. No memory is allocated for
    an impossible size."""
    cdef bytes data
    if size > <uint64_t>packed_size * GROWTH_MAX:
        raise PayloadError("compressed data say more than they can hold")
    data = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
    if not unpack(packed, packed_size, <uint8_t*>PyBytes_AS_STRING(data), <Py_ssize_t>size):
        raise PayloadError("compressed data are malformed")
    return data
