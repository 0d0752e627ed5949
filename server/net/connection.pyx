# cython: language_level=3, wraparound=False
"""A client's connection, by TCP, TLS or a Unix socket: an asyncio protocol that passes bytes to the
executor and back.

It uses the socket and is independent of commands. Back-pressure applies in both directions: while
the client does not read its replies, its requests are not run, and when requests accumulate, its
socket is not read.

Bytes are sent directly to the socket, except with TLS, where the transport encrypts them. The
transport gets the part that the socket does not accept, and notifies the connection when the socket
accepts bytes again. Until then all other output waits in a queue of bytes objects, most of which
are shared with other clients. Therefore nothing is copied and no send is tried for a client that
does not read.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint64_t

from collections import deque

from millstream.server.protocol.outbox cimport UNREAD_MAX, Client

from millstream.storage.blocks.lazyfree import discard_items

INPUT_ENDED = "UNBLOCKED the connection's input has ended"

cdef enum:
    KEEPALIVE_MAX_S = 32767  # the maximum of Linux
    # Pieces shorter than this are joined, up to this length, to be sent together.
    JOIN_BYTES = 65536
    # Maximum passed to the transport: more than it buffers before it reports a full socket.
    GIVEN_BYTES = 131072

cdef extern from "<sys/socket.h>":
    enum:
        AF_INET
        AF_INET6
        MSG_DONTWAIT
        MSG_NOSIGNAL
        SOL_SOCKET
        SO_KEEPALIVE
    struct sockaddr:
        pass
    struct sockaddr_storage:
        pass
    int getpeername(int socket, sockaddr* address, unsigned int* size)
    int getsockname(int socket, sockaddr* address, unsigned int* size)
    ssize_t send(int socket, const void* data, size_t size, int flags)
    int setsockopt(int socket, int level, int option, const void* value, unsigned int size)

cdef extern from "<sys/ioctl.h>":
    int ioctl(int file, unsigned long request, int* value)

cdef extern from "<linux/sockios.h>":
    enum:
        SIOCOUTQ

cdef extern from "<netinet/in.h>":
    enum:
        INET6_ADDRSTRLEN
        IPPROTO_TCP
    struct in_addr:
        pass
    struct in6_addr:
        pass
    struct sockaddr_in:
        unsigned short sin_family
        unsigned short sin_port
        in_addr sin_addr
    struct sockaddr_in6:
        unsigned short sin6_port
        in6_addr sin6_addr

cdef extern from "<arpa/inet.h>":
    const char* inet_ntop(int family, const void* address, char* text, unsigned int size)
    unsigned short ntohs(unsigned short number)

cdef extern from "<netinet/tcp.h>":
    enum:
        TCP_KEEPIDLE
        TCP_KEEPINTVL
        TCP_KEEPCNT


cdef str name_of_end(int file_number, bint peer):
    """One end of a TCP connection as text; None for another kind of socket, or when the client has
    already gone. The transport's methods would make three objects more."""
    cdef sockaddr_storage address
    cdef sockaddr_in* ip4 = <sockaddr_in*>&address
    cdef sockaddr_in6* ip6 = <sockaddr_in6*>&address
    cdef unsigned int size = sizeof(address)
    cdef char host[INET6_ADDRSTRLEN]
    cdef const unsigned char* part
    cdef int failed
    if peer:
        failed = getpeername(file_number, <sockaddr*>&address, &size)
    else:
        failed = getsockname(file_number, <sockaddr*>&address, &size)
    if failed:
        return None
    if ip4.sin_family == AF_INET:
        part = <const unsigned char*>&ip4.sin_addr  # inet_ntop takes five times as long
        return f"{part[0]}.{part[1]}.{part[2]}.{part[3]}:{ntohs(ip4.sin_port)}"
    if ip4.sin_family == AF_INET6:
        inet_ntop(AF_INET6, &ip6.sin6_addr, host, INET6_ADDRSTRLEN)
        return f"[{host.decode('ascii')}]:{ntohs(ip6.sin6_port)}"
    return None


cdef str name_of(address):
    if not address:
        return ""
    if isinstance(address, str):
        return f"{address}:0"
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


cdef int set_option(int file_number, int level, int option, int value) noexcept:
    return setsockopt(file_number, level, option, &value, sizeof(int))


cdef class Connection(Client):
    """One accepted connection."""

    def __init__(self, clients, Executor executor not None, poller=None):
        self.clients = clients
        self.executor = executor
        self.poller = poller
        Client.__init__(self, clients.next_id(), "", "", clients.steady_ms())
        self.reading = True
        self.file_number = self.direct_number = -1

    def connection_made(self, transport) -> None:
        self.transport = transport
        self.file_number = transport.get_extra_info("socket").fileno()
        if transport.get_extra_info("ssl_object") is None:
            self.direct_number = self.file_number
        if not self.address:  # otherwise a gateway has said who the client is
            self.local_address = name_of_end(self.file_number, False)
            self.address = name_of_end(self.file_number, True)
            if self.local_address is None or self.address is None:
                self.name_by_transport()
        self.executor.attach(self)
        self.clients.opened(self)

    cdef int name_by_transport(self) except -1:
        """The addresses of a Unix socket, and of a client that has already gone."""
        local = self.transport.get_extra_info("sockname")
        self.local_address = name_of(local)
        self.is_unix = isinstance(local, str)
        self.address = self.local_address
        if not self.is_unix:
            self.address = name_of(self.transport.get_extra_info("peername"))
        return 0

    def keep_alive(self, int idle_s) -> None:
        """Set TCP keepalive as Redis does: the first probe after `idle_s`, three more at intervals
        of a third. On a connection that has just closed it fails, without effect. The transport's
        methods would make an object and a system call more for each option."""
        if self.is_unix or self.file_number < 0:
            return
        idle_s = min(idle_s, KEEPALIVE_MAX_S)
        set_option(self.file_number, SOL_SOCKET, SO_KEEPALIVE, 1)
        set_option(self.file_number, IPPROTO_TCP, TCP_KEEPIDLE, idle_s)
        set_option(self.file_number, IPPROTO_TCP, TCP_KEEPINTVL, max(1, idle_s // 3))
        set_option(self.file_number, IPPROTO_TCP, TCP_KEEPCNT, 3)

    def data_received(self, bytes data) -> None:
        self.receive(data, len(data))
        if self.poller is not None:
            self.poll_later()

    cdef int receive(self, const char* data, Py_ssize_t size) except -1:
        """Run the requests in received bytes."""
        if self.closed:
            return 0
        self.total_bytes_in += size
        try:
            self.executor.receive(self, data, size)
        except BaseException:
            # The parser may still refer to these bytes, which are about to become invalid, so that
            # it must not run again.
            self.end(False)
            raise
        if self.parser.waiting_bytes() > UNREAD_MAX:
            self.regulate()
        return 0

    cdef int poll_later(self) except -1:
        """Read the socket by the poller from the second arrival of data on. Many connections send
        only one request."""
        if not self.has_received:
            self.has_received = True
        elif self.reading and self.direct_number >= 0 and not self.closed and self.caught_up():
            self.transport.pause_reading()
            self.polled = self.poller.add(self)
            if not self.polled:
                self.transport.resume_reading()
        return 0

    cdef int stop_polling(self) except -1:
        if self.polled:
            self.polled = False
            self.poller.remove(self)
        return 0

    cdef int read_by_transport(self) except -1:
        """The client has closed the connection, or it has failed."""
        self.stop_polling()
        self.transport.resume_reading()
        return 0

    def eof_received(self) -> bool:
        """The client has closed its end, perhaps only for sending (SHUT_WR). Requests that arrived
        are run, and their replies sent, but no request that CLIENT PAUSE has postponed. TLS has no
        such half-closed state."""
        cdef bint postponed = (
            self.postponed is not None and not self.executor.admission.queue_full)
        if self.direct_number < 0 or self.feed is not None or postponed or not (
                self.held_pieces or self.dirty or self.queue or self.producer is not None
                or self.has_more()):
            return False
        self.input_ended = True
        self.reading = False
        self.regulate()
        self.executor.resume(self)
        return True

    def connection_lost(self, error) -> None:
        self.stop_polling()
        self.file_number = self.direct_number = -1  # the transport closes it when this returns
        self.drop_queue()
        self.executor.detach(self)
        self.clients.closed(self)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self.queue:
            self.pass_on()
        if not self.paused:
            self.executor.outbox.on_writable(self)
            self.regulate()

    cpdef int regulate(self) except -1:
        """Pause reading while many received bytes wait, and resume it afterwards. An incomplete
        long request does not pause reading, because the rest of it must arrive, unless it waits for
        the journal. A wait ends when the client's input has ended."""
        if self.input_ended:
            if self.waiter is not None:
                self.executor.end_wait(self, INPUT_ENDED, close=True)
            return 0
        cdef bint much = self.parser.waiting_bytes() > UNREAD_MAX
        cdef bint wait = much and (self.unfinished or self.stopped())
        if much and not wait and self.executor.admission.queue_full:
            self.executor.backpressure.unread.add(self)
            wait = True
        if self.closed or wait != self.reading:
            return 0
        self.reading = not wait
        if self.polled:
            self.stop_polling()  # the transport is paused
        elif wait:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()
        return 0

    cpdef int transmit(self, bytes data) except -1:
        """Send directly to the socket; the part that it does not accept waits."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef Py_ssize_t sent = 0
        if size == 0:
            return 0
        self.total_bytes_out += size
        if not self.paused and not self.queue:
            if self.direct_number < 0 and size <= GIVEN_BYTES:
                return self.give_all(data)
            sent = self.try_send(data, 0)
            if sent == size:
                return 0
        if self.queue is None:
            self.queue = deque()
        self.queue.append(data)
        self.unsent_bytes += size
        if sent:
            self.note_sent(sent)
        return self.pass_on()

    cpdef int transmit_all(self, list pieces, uint64_t size) except -1:
        self.total_bytes_out += size
        if self.queue is None:
            self.queue = deque()
        self.queue.extend(pieces)
        self.unsent_bytes += size
        return self.pass_on()

    cdef int pass_on(self) except -1:
        """Send from the queue until the socket and the transport are full."""
        cdef bytes data
        cdef Py_ssize_t sent
        while not self.paused and self.queue:
            data = self.first_piece()
            sent = self.try_send(data, self.first_sent)
            if sent < PyBytes_GET_SIZE(data) - self.first_sent:
                sent += self.give(data, self.first_sent + sent,
                                  PyBytes_GET_SIZE(data) - self.first_sent - sent)
            self.note_sent(sent)
        if self.closing and not self.queue:
            self.transport.close()
        elif self.paused:
            self.clients.check_output(self)
        return 0

    cdef bytes first_piece(self):
        """The first bytes of the queue; short pieces are joined."""
        cdef bytes data = self.queue[0]
        if len(self.queue) > 1 and PyBytes_GET_SIZE(data) - self.first_sent < JOIN_BYTES:
            self.join_first()
            data = self.queue[0]
        return data

    cdef int join_first(self) except -1:
        cdef list pieces = []
        cdef Py_ssize_t size = 0
        cdef bytes data
        while self.queue and size < JOIN_BYTES:
            data = self.queue.popleft()
            if self.first_sent:
                data = data[self.first_sent:]
                self.first_sent = 0
            pieces.append(data)
            size += PyBytes_GET_SIZE(data)
        self.queue.appendleft(b"".join(pieces))
        return 0

    cdef Py_ssize_t try_send(self, bytes data, Py_ssize_t start) except -1:
        """Send as many bytes as the socket accepts; return their number. Send nothing while the
        transport has earlier bytes."""
        cdef ssize_t sent
        if self.direct_number < 0 or (self.backlog and not self.caught_up()):
            return 0
        sent = send(self.direct_number, PyBytes_AS_STRING(data) + start,
                    PyBytes_GET_SIZE(data) - start, MSG_DONTWAIT | MSG_NOSIGNAL)
        self.backlog = sent < PyBytes_GET_SIZE(data) - start
        return max(sent, 0)  # the transport will detect and report an error

    cdef int give(self, bytes data, Py_ssize_t start, Py_ssize_t size) except -1:
        """Pass bytes to the transport, which sends them when the socket accepts more; return their
        number."""
        self.backlog = True
        size = min(size, GIVEN_BYTES)
        self.transport.write(memoryview(data)[start:start + size])
        return size

    cdef int give_all(self, bytes data) except -1:
        """Pass a reply to the transport, which encrypts it."""
        self.transport.write(data)
        if self.paused:
            self.clients.check_output(self)
        return 0

    cdef int note_sent(self, Py_ssize_t size) except -1:
        """Note that bytes of the queue's first piece were sent or passed to the transport."""
        self.unsent_bytes -= size
        self.first_sent += size
        if self.first_sent == PyBytes_GET_SIZE(<bytes>self.queue[0]):
            self.queue.popleft()
            self.first_sent = 0
        return 0

    cdef bint caught_up(self) except -1:
        """True if the transport has sent all its bytes. A transport that closes may have dropped
        them, and then nothing may be sent after them."""
        return self.transport.get_write_buffer_size() == 0 and not self.transport.is_closing()

    cpdef int end(self, bint after_reply) except -1:
        self.stop_polling()
        self.file_number = self.direct_number = -1  # nothing is sent past a closing transport
        if after_reply:
            self.close_after_reply = self.closing = True
            if not self.queue:
                self.transport.close()
        else:
            # End its waits: no more output may be produced for it.
            self.executor.detach(self)
            self.drop_queue()
            self.transport.abort()
        return 0

    cdef int drop_queue(self) except -1:
        """Discard the output of a disconnected client; long queues are freed later."""
        if self.queue:
            discard_items(self.queue)
            self.executor.schedule_tick()
        self.queue = None
        self.unsent_bytes = 0
        self.first_sent = 0
        return 0

    def close(self, bint after_reply) -> None:
        """Close the connection, immediately or when everything written has been sent."""
        self.end(after_reply)

    cdef uint64_t read_bytes(self) except? 0:
        """The bytes of output that the client has read, as far as this is known. The kernel reports
        a full socket as writable only when a third of its buffer, up to megabytes, is free, so its
        unread bytes are counted while others wait for it."""
        cdef uint64_t waiting_bytes = self.unsent_bytes
        cdef int in_kernel = 0
        if self.backlog or self.direct_number < 0:
            waiting_bytes += <uint64_t>self.transport.get_write_buffer_size()
        if waiting_bytes and self.file_number >= 0:
            ioctl(self.file_number, SIOCOUTQ, &in_kernel)
        return self.total_bytes_out - waiting_bytes - in_kernel

    @property
    def output_bytes(self) -> int:
        return self.held_bytes + self.unsent_bytes + self.transport.get_write_buffer_size()


def note_readers(list clients not None, uint64_t now_ms) -> None:
    """Note that those of these connections that have read output since the last call are active."""
    cdef Connection client
    cdef uint64_t read_bytes
    for client in clients:
        read_bytes = client.read_bytes()
        if read_bytes != client.noted_bytes:
            client.noted_bytes = read_bytes
            client.last_active_ms = now_ms


cdef uint64_t memory_of(Connection client, uint64_t client_bytes) except? 0:
    """The memory of a connection, which takes `client_bytes` beyond its buffers."""
    cdef uint64_t memory_bytes = client_bytes + client.held_bytes + client.unsent_bytes
    if client.backlog or client.direct_number < 0:
        memory_bytes += <uint64_t>client.transport.get_write_buffer_size()
    memory_bytes += client.queued_bytes
    if client.parser is not None:
        memory_bytes += client.parser.capacity + client.parser.table_bytes()
    return memory_bytes


def sums_of(list clients not None, uint64_t client_bytes) -> tuple:
    """The totals of these connections for INFO: the most received and the most unsent bytes of
    one of them, the memory of replicas, that of all other clients, the number of subscribers, and a
    list of the clients that watch keys. Each connection takes `client_bytes` beyond its buffers."""
    cdef Connection client
    cdef uint64_t input_bytes, output_bytes, memory_bytes
    cdef uint64_t input_max = 0
    cdef uint64_t output_max = 0
    cdef uint64_t of_replicas = 0
    cdef uint64_t of_others = 0
    cdef uint64_t subscribed = 0
    cdef list watching = []
    for client in clients:
        input_bytes = 0
        output_bytes = client.held_bytes + client.unsent_bytes
        if client.backlog or client.direct_number < 0:
            output_bytes += <uint64_t>client.transport.get_write_buffer_size()
        memory_bytes = memory_of(client, client_bytes)
        if client.parser is not None:
            input_bytes = client.parser.waiting_bytes()
        input_max = max(input_max, input_bytes)
        output_max = max(output_max, output_bytes)
        if client.feed is None or not client.feed.is_replica:
            of_others += memory_bytes
        else:
            of_replicas += memory_bytes
        if client.is_subscribed():
            subscribed += 1
        if client.watches:
            watching.append(client)
    return input_max, output_max, of_replicas, of_others, subscribed, watching


def memories_of(list clients not None, uint64_t client_bytes) -> list:
    """The memory of each of these connections; 0 for replicas and backups, which have limits
    of their own."""
    cdef Connection client
    cdef list found = []
    for client in clients:
        found.append(0 if client.feed is not None else memory_of(client, client_bytes))
    return found
