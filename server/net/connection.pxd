from libc.stdint cimport uint64_t

from millstream.server.execution.executor cimport Executor
from millstream.server.protocol.outbox cimport Client


cdef class Connection(Client):
    cdef object clients  # server/clients.Clients
    cdef Executor executor
    cdef object poller  # server/net/poller.Poller, or None
    # True if the poller reads the socket, and the transport does not.
    cdef bint polled
    cdef bint has_received
    cdef readonly object transport
    # The descriptor of its socket; -1 when the socket is closed or about to be closed.
    cdef readonly int file_number
    # The same where bytes are sent to it directly; -1 also with TLS, which only the transport may
    # send.
    cdef int direct_number
    cdef readonly bint is_unix
    # True if the transport may have unsent bytes.
    cdef bint backlog
    # Bytes objects that were not passed to the transport yet; the first `first_sent` bytes of the
    # first one were. None if unused.
    cdef object queue
    cdef readonly uint64_t unsent_bytes
    cdef Py_ssize_t first_sent
    cdef bint closing
    cdef readonly uint64_t total_bytes_in
    cdef readonly uint64_t total_bytes_out
    cdef uint64_t noted_bytes  # of its output it had read these when `note_readers` looked

    cdef int name_by_transport(self) except -1
    cdef int receive(self, const char* data, Py_ssize_t size) except -1
    cdef int poll_later(self) except -1
    cdef int stop_polling(self) except -1
    cdef int read_by_transport(self) except -1
    cdef bint caught_up(self) except -1
    cdef uint64_t read_bytes(self) except? 0
    cdef int pass_on(self) except -1
    cdef bytes first_piece(self)
    cdef int join_first(self) except -1
    cdef Py_ssize_t try_send(self, bytes data, Py_ssize_t start) except -1
    cdef int give(self, bytes data, Py_ssize_t start, Py_ssize_t size) except -1
    cdef int give_all(self, bytes data) except -1
    cdef int note_sent(self, Py_ssize_t size) except -1
    cdef int drop_queue(self) except -1
