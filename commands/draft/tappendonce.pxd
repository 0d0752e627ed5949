from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.encoding cimport Slice

cdef enum:
    NAME_BYTES_MAX = 1024
    # Producers forgotten after one append, if stream-producers-max was lowered.
    FORGOTTEN_MAX = 64


cdef Slice* take_name(Args args, str command_name) except NULL
cdef int limit_producers(Context ctx, Slice* key, producers, bytes name) except -1
