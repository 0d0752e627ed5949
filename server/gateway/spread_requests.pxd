from millstream.server.gateway.reply_scanner cimport ReplyScanner


cdef struct Lane:
    # The requests of one node. Offsets are those of all bytes of its replies.
    int node
    Py_ssize_t first  # index of the end of its first reply
    Py_ssize_t count
    Py_ssize_t complete  # replies that have arrived
    Py_ssize_t passed  # replies that were passed on
    char* bytes  # what arrived and was not dropped
    Py_ssize_t size
    Py_ssize_t capacity
    Py_ssize_t start  # offset of the first of these bytes
    Py_ssize_t at  # offset of the first byte that was not passed on


cdef class Spread:
    cdef readonly Py_ssize_t count
    cdef readonly list parts
    cdef bytes data
    cdef Py_ssize_t head
    cdef Lane* lanes
    cdef int lane_count
    cdef short* lane_of
    cdef Py_ssize_t* request_ends
    cdef Py_ssize_t* reply_ends
    cdef readonly bint is_inside
    cdef readonly Py_ssize_t held_bytes

    cdef int begin(self, const char* data, const short* nodes, const Py_ssize_t* ends, Py_ssize_t count) except -1
    cdef int add_lane(self, int node) except -1
    cdef bytes requests_of(self, int lane)
    cdef bytes requests_between(self, Py_ssize_t at, Py_ssize_t end)
    cdef bytes held(self, Lane* lane, Py_ssize_t before, Py_ssize_t count)
    cdef int hold(self, Lane* lane, const char* data, Py_ssize_t size) except -1


cdef class SpreadPart:
    cdef readonly Spread spread
    cdef readonly int node
    cdef public object upstream
    cdef public Py_ssize_t kept_bytes
    cdef int lane
    cdef readonly Py_ssize_t taken
