# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Requests for several nodes that have arrived together, and the order of their replies.

Each node gets its requests in one piece. Its replies are kept until the client has all earlier ones; usually
they arrive in a few pieces, and there is no object for a request or for a reply. What is not usual, a refusal
or the end of a node, is left to the caller, which gets the missing replies as runs of one node each.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy

from millstream.server.gateway.reply_scanner cimport ReplyScanner

cdef enum:
    BUFFER_KEPT = 1 << 16  # larger ones are freed when they are empty


cdef class Spread:
    """`parts` has a part for each node. `is_inside`: a part of the next reply was passed on."""

    def __dealloc__(self):
        cdef int lane
        for lane in range(self.lane_count):
            free(self.lanes[lane].bytes)
        free(self.lanes)
        free(self.lane_of)
        free(self.request_ends)

    cdef int begin(self, const char* data, const short* nodes, const Py_ssize_t* ends, Py_ssize_t count) except -1:
        """The requests: the node of each, and where it ends in the bytes."""
        cdef Py_ssize_t at
        cdef Py_ssize_t first = 0
        cdef int lane
        cdef SpreadPart part
        self.lane_of = <short*>malloc(count * sizeof(short))
        self.request_ends = <Py_ssize_t*>malloc(2 * count * sizeof(Py_ssize_t))
        if self.lane_of == NULL or self.request_ends == NULL:
            raise MemoryError
        self.reply_ends = self.request_ends + count
        self.count = count
        self.data = data[:ends[count - 1]]
        memcpy(self.request_ends, ends, count * sizeof(Py_ssize_t))
        for at in range(count):
            for lane in range(self.lane_count):
                if self.lanes[lane].node == nodes[at]:
                    break
            else:
                lane = self.add_lane(nodes[at])
            self.lane_of[at] = lane
            self.lanes[lane].count += 1
        self.parts = []
        for lane in range(self.lane_count):
            self.lanes[lane].first = first
            first += self.lanes[lane].count
            part = SpreadPart.__new__(SpreadPart)
            part.spread, part.lane, part.node = self, lane, self.lanes[lane].node
            self.parts.append(part)
        return 0

    cdef int add_lane(self, int node) except -1:
        """The index of a new lane."""
        cdef int lane = self.lane_count
        if lane % 8 == 0:
            lanes = <Lane*>realloc(self.lanes, (lane + 8) * sizeof(Lane))
            if lanes == NULL:
                raise MemoryError
            self.lanes = lanes
        self.lanes[lane] = Lane(node=node, first=0, count=0, complete=0, passed=0, bytes=NULL, size=0, capacity=0, start=0, at=0)
        self.lane_count += 1
        return lane

    cdef bytes requests_of(self, int lane):
        """The requests of a node as one piece."""
        cdef Py_ssize_t at
        cdef Py_ssize_t begin = 0
        cdef Py_ssize_t size = 0
        cdef const char* data = PyBytes_AS_STRING(self.data)
        for at in range(self.count):
            if self.lane_of[at] == lane:
                size += self.request_ends[at] - begin
            begin = self.request_ends[at]
        found = PyBytes_FromStringAndSize(NULL, size)
        cdef char* out = PyBytes_AS_STRING(found)
        begin = 0
        for at in range(self.count):
            size = self.request_ends[at] - begin
            if self.lane_of[at] == lane:
                memcpy(out, data + begin, size)
                out += size
            begin = self.request_ends[at]
        return found

    def forget_requests(self) -> None:
        """They will not be sent again."""
        self.data = None

    def end(self) -> None:
        """No reply is passed on any more."""
        self.parts = []  # they refer to this spread

    def runs(self) -> list:
        """For each run of one node: node, number of replies that have not arrived, their requests, and the
        bytes that have arrived and were not passed on. Without what was passed on."""
        cdef Py_ssize_t at = self.head
        cdef Py_ssize_t end
        cdef Py_ssize_t done
        cdef Py_ssize_t before
        cdef Lane* lane
        cdef list found = []
        cdef Py_ssize_t* seen = <Py_ssize_t*>calloc(self.lane_count, sizeof(Py_ssize_t))
        if seen == NULL:
            raise MemoryError
        try:
            for index in range(self.lane_count):
                seen[index] = self.lanes[index].passed
            while at < self.count:
                lane = &self.lanes[self.lane_of[at]]
                before = seen[self.lane_of[at]]
                end = at
                while end < self.count and self.lane_of[end] == self.lane_of[at]:
                    end += 1
                done = min(max(lane.complete - before, 0), end - at)
                seen[self.lane_of[at]] += end - at
                found.append((lane.node, end - at - done, self.requests_between(at + done, end), self.held(lane, before, end - at)))
                at = end
        finally:
            free(seen)
        return found

    cdef bytes requests_between(self, Py_ssize_t at, Py_ssize_t end):
        cdef Py_ssize_t begin = self.request_ends[at - 1] if at else 0
        cdef const char* data
        if at == end or self.data is None:
            return b""
        data = PyBytes_AS_STRING(self.data)
        return data[begin:self.request_ends[end - 1]]

    cdef bytes held(self, Lane* lane, Py_ssize_t before, Py_ssize_t count):
        """The bytes of these replies of a lane that have arrived and were not passed on."""
        cdef Py_ssize_t begin
        cdef Py_ssize_t end
        if before > lane.complete:
            return b""
        begin = lane.at if before == lane.passed else self.reply_ends[lane.first + before - 1]
        if before + count <= lane.complete:
            end = self.reply_ends[lane.first + before + count - 1]
        else:
            end = lane.start + lane.size
        return lane.bytes[begin - lane.start:end - lane.start] if end > begin else b""

    cdef int hold(self, Lane* lane, const char* data, Py_ssize_t size) except -1:
        """Keep bytes that have arrived."""
        if lane.size + size > lane.capacity:
            capacity = max(256, lane.size + size + lane.size // 2)
            bytes_ = <char*>realloc(lane.bytes, capacity)
            if bytes_ == NULL:
                raise MemoryError
            lane.bytes, lane.capacity = bytes_, capacity
        memcpy(lane.bytes + lane.size, data, size)
        lane.size += size
        self.held_bytes += size
        return 0

    @property
    def is_done(self) -> bool:
        """True if all replies were passed on."""
        return self.head == self.count

    def drain(self) -> bytes:
        """The bytes that can be passed on now, if the client has all earlier replies. They count as passed on."""
        cdef Py_ssize_t size = 0
        cdef Py_ssize_t end
        cdef Lane* lane
        if not self.held_bytes:
            return b""
        found = PyBytes_FromStringAndSize(NULL, self.held_bytes)
        cdef char* out = PyBytes_AS_STRING(found)
        self.is_inside = False
        while self.head < self.count:
            lane = &self.lanes[self.lane_of[self.head]]
            is_whole = lane.passed < lane.complete
            end = self.reply_ends[lane.first + lane.passed] if is_whole else lane.start + lane.size
            memcpy(out + size, lane.bytes + (lane.at - lane.start), end - lane.at)
            size += end - lane.at
            lane.at = end
            if not is_whole:
                self.is_inside = lane.at > (self.reply_ends[lane.first + lane.passed - 1] if lane.passed else 0)
                break
            lane.passed += 1
            self.head += 1
        for index in range(self.lane_count):
            lane = &self.lanes[index]
            if lane.size and lane.at == lane.start + lane.size:
                lane.start, lane.size = lane.at, 0
                if lane.capacity > BUFFER_KEPT:
                    free(lane.bytes)
                    lane.bytes, lane.capacity = NULL, 0
        self.held_bytes -= size
        if self.head == self.count:
            self.parts = []  # they refer to this spread
        return found if not self.held_bytes else found[:size]


cdef class SpreadPart:
    """The requests of a spread for one node. `upstream` is the connection to it, which keeps
    `kept_bytes` of them."""

    @property
    def raw(self) -> bytes:
        """The requests."""
        return self.spread.requests_of(self.lane)

    @property
    def missing(self) -> int:
        """The number of replies that have not arrived."""
        cdef Lane* lane = &self.spread.lanes[self.lane]
        return lane.count - lane.complete

    @property
    def is_next(self) -> bool:
        """True if the next reply of the spread is of this node."""
        cdef Spread spread = self.spread
        return spread.head < spread.count and spread.lane_of[spread.head] == self.lane

    def take(self, ReplyScanner scanner not None, bytes data not None, Py_ssize_t at) -> int:
        """Keep replies that begin at a place of received bytes; where they end. `taken`: the number of bytes
        that are kept. If the scanner has found a refusal, it is what follows them, and not kept."""
        cdef Lane* lane = &self.spread.lanes[self.lane]
        cdef const char* begin = PyBytes_AS_STRING(data)
        cdef Py_ssize_t size = len(data)
        cdef Py_ssize_t here = at
        cdef Py_ssize_t end = at
        cdef Py_ssize_t base = lane.start + lane.size - at
        while lane.complete < lane.count and here < size:
            end = scanner.scan_bytes(begin, size, here, 1)
            if scanner.refused or end == here:
                break
            here = end
            if scanner.complete:
                self.spread.reply_ends[lane.first + lane.complete] = base + here
                lane.complete += 1
        self.taken = here - at
        if self.taken:
            self.spread.hold(lane, begin + at, self.taken)
        return end
