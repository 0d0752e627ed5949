from libc.stdint cimport int64_t, uint64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.storage.streams.stream cimport Stream


cdef enum References:
    KEEP_REFERENCES
    DROP_REFERENCES
    ONLY_ACKED


cdef struct ReferenceHandling:
    References kind
    bint given


cdef bint take_reference_handling(Args args, ReferenceHandling* policy) noexcept
cdef int settle_groups(Context ctx, bytes key, Stream stream) except -1
cdef int drop_references(Context ctx, bytes key, Stream stream, list ids) except -1
cdef int drop_references_between(Context ctx, bytes key, Stream stream, uint64_t ms, uint64_t seq,
                                 uint64_t end_ms, uint64_t end_seq) except -1
cdef int64_t dropped_most(bytes key, Stream stream, uint64_t ids) except -1
