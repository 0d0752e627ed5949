from libc.stdint cimport uint64_t

from millstream.commands.context cimport Session
from millstream.server.resp cimport Parser

cdef enum:
    # A client that is to take more than this of replies, or whose unread requests are more, stops.
    OUTPUT_MAX = 1048576
    UNREAD_MAX = 262144


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
    cdef public bint closed

    cpdef int transmit(self, bytes data) except -1
    cpdef int end(self, bint after_reply) except -1
    cdef bint stopped(self) noexcept


cdef class Outbox:
    cdef object persistence
    cdef object loop
    cdef object resume
    cdef list dirty_clients
    cdef object held
    cdef public uint64_t bytes_out

    cdef int put(self, Client client, bytes data) except -1
    cdef int send(self) except -1
    cdef int release(self, Client client, bytes data) except -1
