from libc.stdint cimport uint64_t

from millstream.entry_id cimport EntryId
from millstream.storage.blocks.layout cimport View
from millstream.storage.log.entry_log cimport EntryLog

cdef list nodes_of(const View* view, uint64_t hidden)
cpdef uint64_t node_count(EntryLog log) except? 0xffffffffffffffff
cdef object boundary_by_nodes(
    EntryLog log, uint64_t keep, const EntryId* minid, uint64_t limit, bint partly)
cpdef uint64_t radix_tree_nodes(EntryLog log, Py_ssize_t most) except? 0
