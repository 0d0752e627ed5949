from libc.stdint cimport int64_t, uint64_t

from millstream.commands.arguments cimport Args
from millstream.ids cimport EntryId


cdef struct Trim:
    bint by_length
    bint by_id
    bint approximate
    uint64_t keep
    EntryId first_kept
    bint limited
    uint64_t limit


cdef bint take_trim(Args args, Trim* trim) except -1
