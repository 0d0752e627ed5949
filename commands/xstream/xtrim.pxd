from libc.stdint cimport uint64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.commands.engine.references cimport ReferenceHandling
from millstream.ids cimport EntryId
from millstream.storage.streams.stream cimport Stream


cdef struct Trim:
    bint by_length
    bint by_id
    bint approximate
    uint64_t keep
    EntryId first_kept
    bint limited
    uint64_t limit
    ReferenceHandling references


cdef void begin_trim(Trim* trim) noexcept
cdef bint take_trim(Args args, Trim* trim) except -1
cdef int check_trim(Trim* trim) except -1
cdef uint64_t trim_stream(Context ctx, bytes key, Stream stream, Trim* trim,
                          bint counts) except? 0xffffffffffffffff
