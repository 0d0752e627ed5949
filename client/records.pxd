cdef class Layout:
    cdef tuple names
    cdef dict positions


cdef class Record:
    cdef object _id
    cdef readonly object shard
    cdef readonly bint late
    cdef Layout _layout
    cdef tuple _values

    cdef dict mapping(self)


cdef class RecordReader:
    cdef Layout _layout
    cdef dict _layouts

    cdef Record record(self, object shard, list entry)
    cdef Layout find(self, tuple names)
