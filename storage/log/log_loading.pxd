from millstream.storage.log.entry_log cimport EntryLog


cdef int load_blocks(EntryLog log, blocks, bint is_open) except -1
