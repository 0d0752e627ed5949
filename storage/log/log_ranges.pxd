from libc.stdint cimport int64_t

from millstream.encoding cimport Output
from millstream.entry_id cimport EntryId
from millstream.storage.blocks.reply_entries cimport Selection
from millstream.storage.log.entry_log cimport EntryLog


cdef int64_t encode_range(EntryLog log, Output out, const Selection* wanted, bint dotted,
                          EntryId* last) except -1
cdef int64_t encode_reverse(EntryLog log, Output out, const Selection* wanted, bint dotted,
                            EntryId* last) except -1
cdef int64_t encode_blocks(list blocks, Output out, const Selection* wanted, bint dotted,
                           bint reverse, EntryId* last) except -1
