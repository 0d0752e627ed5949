from millstream.commands.arguments cimport Args
from millstream.storage.policy cimport Policy
from millstream.storage.stream cimport Stream

cdef Policy take_policy(Args args, Policy before)
cdef int set_policy(Stream stream, Policy policy) except -1
