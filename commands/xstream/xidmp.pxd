from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.encoding cimport Slice
from millstream.ids cimport EntryId
from millstream.storage.streams.stream cimport Stream


# IDMP producer iid, or IDMPAUTO producer (iid NULL); producer NULL when neither was given.
cdef struct Once:
    Slice* producer
    Slice* iid


cdef bint take_once(Args args, Once* once) except -1
cdef bytes name_of(Once* once, Slice* items, Py_ssize_t count)
cdef bint is_repeat(Context ctx, bytes key, Stream stream, bytes producer, bytes iid,
                    EntryId* first) except -1
