from libc.stdint cimport uint64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.entry_id cimport EntryId
from millstream.storage.streams.stream cimport Stream


# The handling of references to an evicted entry.
cdef enum References:
    NOT_GIVEN
    KEEP_REFERENCES
    DROP_REFERENCES
    ONLY_ACKED


cdef struct Trim:
    bint by_length
    bint by_id
    bint approximate
    uint64_t keep
    EntryId first_kept
    bint limited
    uint64_t limit
    References references


cpdef References take_references(Args args) noexcept
cdef void begin_trim(Trim* trim) noexcept
cdef bint take_trim(Args args, Trim* trim) except -1
cdef int check_trim(Trim* trim) except -1
cdef uint64_t trim_stream(Context ctx, bytes key, Stream stream, Trim* trim,
                          bint counts) except? 0xffffffffffffffff
