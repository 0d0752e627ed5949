from libc.stdint cimport uint64_t

from millstream.commands.engine.delivery cimport ReplyBudget
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.stream_effects cimport Terms
from millstream.encoding cimport Output
from millstream.storage.groups.group cimport Group
from millstream.storage.streams.stream cimport Stream


cdef enum:
    # A read ends after this number of due records without an entry, which take 2 ms.
    GONE_MAX = 5000


cdef int set_deadline(Terms* terms, Group group) noexcept
cdef uint64_t deliver_due(Context ctx, bytes key, Stream stream, Group group, const Terms* terms,
                          Output out, ReplyBudget* budget) except? 0xffffffffffffffff
