# cython: language_level=3, boundscheck=False, wraparound=False
"""A client's TCP connection: an asyncio protocol that hands bytes to the executor and back.

It knows the socket and nothing of commands. Back-pressure goes both ways: while the client does not
take its replies its requests are not run, and when those pile up its socket is not read.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from millstream.server.outbox cimport UNREAD_MAX, Client

cdef extern from "<sys/socket.h>":
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL
    ssize_t send(int socket, const void* data, size_t size, int flags)


cdef str name_of(address):
    if not address:
        return ""
    if isinstance(address, str):
        return address
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


cdef class Connection(Client):
    """One accepted connection."""

    def __init__(self, server):
        Client.__init__(self, server.next_client_id(), now_ms=server.now_ms())
        self.server = server
        self.executor = server.executor
        self.reading = True
        self.file_number = -1

    def connection_made(self, transport) -> None:
        self.transport = transport
        self.file_number = transport.get_extra_info("socket").fileno()
        self.address = name_of(transport.get_extra_info("peername"))
        self.local_address = name_of(transport.get_extra_info("sockname"))
        self.executor.attach(self)
        self.server.client_opened(self)

    def data_received(self, bytes data) -> None:
        if self.closed:
            return
        self.total_bytes_in += len(data)
        self.executor.receive(self, data)
        if self.parser.waiting_bytes() > UNREAD_MAX:
            self.regulate()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error) -> None:
        self.file_number = -1  # the transport closes it when this returns
        self.executor.detach(self)
        self.server.client_closed(self)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self.executor.outbox.room(self)
        self.regulate()

    cpdef int regulate(self) except -1:
        """Stop reading while much of what was read has to wait, and go on afterwards. One long
        request that is not complete does not wait: the rest of it has to come."""
        cdef bint wait = self.parser.waiting_bytes() > UNREAD_MAX and (
            self.unfinished or self.stopped())
        if self.closed or wait != self.reading:
            return 0
        self.reading = not wait
        if wait:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()
        return 0

    cpdef int transmit(self, bytes data) except -1:
        """Straight to the socket, and through the transport what that does not take."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef ssize_t sent = 0
        if size == 0:
            return 0
        if self.file_number >= 0 and (not self.backlog or self.caught_up()):
            sent = send(self.file_number, PyBytes_AS_STRING(data), size,
                        MSG_DONTWAIT | MSG_NOSIGNAL)
        self.backlog = sent < size
        if self.backlog:
            # An error is the transport's to find and to tell of.
            self.transport.write(memoryview(data)[sent:] if sent > 0 else data)
        self.total_bytes_out += size
        if self.paused:
            self.server.check_output(self)
        return 0

    cdef bint caught_up(self) except -1:
        """Whether all that the transport was given has been sent. One that closes has perhaps
        dropped it: what is sent must be the beginning of what was to be sent."""
        return self.transport.get_write_buffer_size() == 0 and not self.transport.is_closing()

    cpdef int end(self, bint after_reply) except -1:
        self.file_number = -1  # nothing goes past a transport that is to close
        if after_reply:
            self.close_after_reply = True
            self.transport.close()
        else:
            # Its waits end now: nothing more may be given to it.
            self.executor.detach(self)
            self.transport.abort()
        return 0

    def close(self, bint after_reply) -> None:
        """Close the connection, at once or when everything written has been sent."""
        self.end(after_reply)

    @property
    def output_bytes(self) -> int:
        return self.held_bytes + self.transport.get_write_buffer_size()
