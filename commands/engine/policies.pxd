from millstream.commands.runtime.context cimport Context
from millstream.storage.streams.stream cimport Stream

cdef int keep_policy_after_append(Context ctx, bytes key, Stream stream) except -1
cdef int settle_marked(Context ctx) except -1
