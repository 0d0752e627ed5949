from libc.stdint cimport int64_t, uint64_t

from millstream.commands.engine.search_work cimport SearchTurns
from millstream.commands.runtime.context cimport Session
from millstream.server.protocol.resp cimport Parser

cdef enum:
    # A client stops when its unsent replies, or its unread requests, exceed this size.
    OUTPUT_MAX = 1048576
    UNREAD_MAX = 262144
    # A transport may buffer this much before it reports that the client does not read.
    UNNOTICED_MAX = 65536
    # Limits of the output that is sent in one turn of the event loop.
    TURN_CLIENTS = 500
    TURN_BYTES = 4194304


cdef class Client(Session):
    cdef Parser parser
    cdef list chunks
    cdef uint64_t held_pieces
    cdef readonly uint64_t held_bytes
    cdef object waiter
    cdef object producer
    cdef public bint full
    cdef public bint paused
    cdef bint dirty
    cdef bint shown_data  # whether the bytes in `chunks` may show data
    cdef public bint closed
    cdef list pushes
    cdef object postponed
    # Its batch ended at the time limit, with more requests to run.
    cdef bint unfinished
    cdef bint reading
    cdef bint input_ended  # it sends no more requests; closed after its replies
    cdef readonly uint64_t total_commands

    cpdef int transmit(self, bytes data) except -1
    cpdef int transmit_all(self, list pieces, uint64_t size) except -1
    cpdef int end(self, bint after_reply) except -1
    cpdef int regulate(self) except -1
    cdef bint stopped(self) noexcept
    cdef bint has_more(self) noexcept


cdef class FrameNumbers:
    cdef public int64_t last_seq
    cdef public int64_t durable_seq


cdef class Outbox:
    cdef FrameNumbers commits  # server/durability/commits.Commits
    cdef object loop
    cdef object resume
    cdef list dirty_clients
    cdef object late  # dirty clients whose output is sent in a later turn
    cdef uint64_t late_bytes  # noted for late clients, at most
    cdef list crowding  # clients that wait until the output that they caused is sent
    cdef object held
    cdef int64_t durable_seq  # held output up to this frame may be sent
    cdef bint releasing  # the rest of it is sent in a later turn
    cdef public uint64_t bytes_out
    cdef public uint64_t writes
    cdef public object check_output
    cdef public uint64_t least_limit_bytes
    cdef readonly set lagging
    cdef readonly uint64_t noted_bytes
    cdef readonly uint64_t held_bytes
    cdef public object hold_point
    cdef public uint64_t now_ms  # the steady clock of this tick
    cdef public object hold_times
    cdef object hold_starts
    cdef SearchTurns search_turns

    cdef int put(self, Client client, bytes data, bint shows_data) except -1
    cdef int push(self, Client client, bytes data, bint shows_data) except -1
    cdef int transmit(self, Client client, data) except -1
    cdef int check_held(self, Client client) except -1
    cdef int send(self) except -1
    cdef bint begin_turn(self, int64_t last) except -1
    cdef int send_to(self, Client client, bint hold, int64_t last) except -1
    cdef int end_turn(self, int held, int64_t last) except -1
    cdef bint is_crowded(self) noexcept
    cdef take_chunks(self, Client client)
    cdef int release(self, Client client, data) except -1
    cdef int journal_failed(self, bint tick_failed) except -1


cdef uint64_t size_of(data) except? 0
