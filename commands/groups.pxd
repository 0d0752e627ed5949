cdef bytes checked_name(bytes consumer)
