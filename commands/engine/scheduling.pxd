from libc.stdint cimport uint64_t

from millstream.commands.runtime.context cimport Context
from millstream.encoding cimport Slice
from millstream.ids cimport Id


cdef Id schedule_entry(Context ctx, Slice* key, uint64_t due_ms, bytes name, Slice* items,
                       Py_ssize_t count)
