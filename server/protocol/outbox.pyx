# cython: language_level=3, wraparound=False, cdivision=True
"""What clients are to be sent, and when it may leave.

Replies of one tick are collected per client and sent in one write at its end. While the journal has
not made durable what was executed before them they are held, in order, and leave when it has. Long
replies follow in slices, one a turn, as the client takes them.

A message for many clients is one bytes object in many lists. The pieces of a tick go to the
transport as a list, and only the transport joins them, when it sends: so a message costs a client
that does not read one reference, however much waits for that client already.

A client's requests run unless it is in one of these states; each has one way out:

| state | since | until |
|---|---|---|
| `blocked` | its read returned a Wait, or CLIENT PAUSE or a full journal queue put a request off | it was served or timed out, the pause is over, or the queue is shorter (executor) |
| `producer` | its reply goes out in slices | the last slice was sent (`pump`) |
| `full` | more than OUTPUT_MAX held or made, or the transport is `paused` | all left (`room`) |
| `close_after_reply` | QUIT, a protocol error | the last reply was sent, then it is closed |
| `closed` | killed or gone | for good |
"""

from libc.stdint cimport UINT64_MAX

from collections import deque

from millstream.commands.runtime.context cimport Session


cdef class Client(Session):
    """A client as the executor needs it. `transmit` and `end` belong to the transport, which sets
    `paused` while the client does not take what it was sent."""

    cpdef int transmit(self, bytes data) except -1:
        """Send these bytes after all earlier ones."""
        raise NotImplementedError

    cpdef int transmit_all(self, list pieces, uint64_t size) except -1:
        """As `transmit`, of some bytes objects with `size` bytes in all; the list is the client's
        from now on."""
        return self.transmit(b"".join(pieces))

    cpdef int end(self, bint after_reply) except -1:
        """Close the connection, at once or when everything transmitted has been sent."""
        raise NotImplementedError

    cpdef int regulate(self) except -1:
        """Take more requests from the transport, or none while many wait to be run."""
        return 0

    cdef bint stopped(self) noexcept:
        """Whether no further request of this client may run now."""
        return (self.blocked or self.full or self.closed or self.close_after_reply
                or self.producer is not None)

    cdef bint has_more(self) noexcept:
        """Whether it has sent something that was not run yet."""
        return self.postponed is not None or self.parser.waiting_bytes() > 0

    def is_stopped(self) -> bool:
        """`stopped` for those who look from outside."""
        return self.stopped()

    def postponed_words(self) -> list:
        """The request that was put off."""
        return [] if self.postponed is None else self.postponed.all()

    @property
    def query_buffer_bytes(self) -> int:
        """Bytes received and not executed yet."""
        return 0 if self.parser is None else self.parser.waiting_bytes()

    @property
    def query_buffer_free_bytes(self) -> int:
        """Memory in addition to that: for what is received, and for the positions of its words."""
        if self.parser is None:
            return 0
        return self.parser.capacity - self.parser.waiting_bytes() + self.parser.table_bytes()

    @property
    def output_bytes(self) -> int:
        """Bytes of replies that have not left."""
        return self.held_bytes


cdef uint64_t size_of(data) except? 0:
    """The length of bytes, or of all bytes in a list."""
    cdef uint64_t size = 0
    cdef bytes piece
    if type(data) is bytes:
        return len(<bytes>data)
    for piece in <list>data:
        size += len(piece)
    return size


cdef class Outbox:
    """Replies on their way. `resume(client)` is called when a client may run again.

    `check_output(client)` may close a client for which too much waits. It is asked where that
    grows: for what is held from `least_limit_bytes` on. `lagging` are those for whom so much waits,
    or who do not take what they are sent; who looks at them takes them out. `noted_bytes` are those
    of this tick's replies so far, `held_bytes` those of all that wait for the journal.
    """

    def __init__(self, persistence, loop, resume):
        self.persistence = persistence
        self.loop = loop
        self.resume = resume
        self.dirty_clients = []
        self.held = deque()
        self.check_output = None
        self.least_limit_bytes = UINT64_MAX
        self.lagging = set()

    cdef int put(self, Client client, bytes data, bint shows_data) except -1:
        """Note bytes for a client, sent with the tick. None: only that it is to be closed, that a
        long reply begins, or that one was dropped, for which later ones wait all the same."""
        if data is not None:
            client.chunks.append(data)
            self.noted_bytes += len(data)
        client.shown_data = client.shown_data or shows_data
        if not client.dirty:
            client.dirty = True
            self.dirty_clients.append(client)
        return 0

    cdef int push(self, Client client, bytes data) except -1:
        """As `put`, for a message of its own: never between the slices of a reply."""
        if client.producer is not None:
            if client.pushes is None:
                client.pushes = []
            client.pushes.append(data)
            client.held_bytes += len(data)
            return self.look_at_held(client)
        return self.put(client, data, True)

    cdef int look_at_held(self, Client client) except -1:
        """More waits for a client: it may be too much."""
        if client.held_bytes >= self.least_limit_bytes or client.paused:
            self.lagging.add(client)
            if self.check_output is not None:
                self.check_output(client)
        return 0

    cdef int transmit(self, Client client, data) except -1:
        cdef uint64_t size = size_of(data)
        self.bytes_out += size
        self.writes += 1
        if type(data) is bytes:
            client.transmit(<bytes>data)
        else:
            client.transmit_all(<list>data, size)
        if client.paused or self.least_limit_bytes <= UNNOTICED_MAX:
            self.lagging.add(client)
        return 0

    cdef int send(self) except -1:
        """The tick ends: release what was noted, or hold it until the journal is durable. What
        shows no data need not wait for that, only for what the same client is to be sent before."""
        cdef Client client
        cdef object data
        cdef list clients = self.dirty_clients
        cdef object last = self.persistence.last_seq
        cdef bint hold = self.persistence.durable_seq < last
        cdef bint shown_data
        cdef uint64_t size
        if self.held and not hold:
            # The journal's mode was changed, and this tick wrote at once what earlier replies wait for.
            self.durable(last)
        self.dirty_clients = []
        self.noted_bytes = 0
        for client in clients:
            client.dirty = False
            if client.closed:
                continue
            data = self.take_chunks(client)
            shown_data = client.shown_data
            client.shown_data = False
            if hold and (shown_data or client.held_pieces):
                client.held_pieces += 1
                size = size_of(data)
                client.held_bytes += size
                self.held_bytes += size
                client.full = client.full or client.held_bytes > OUTPUT_MAX
                self.held.append((last, client, data))
                self.look_at_held(client)
            else:
                self.release(client, data)
        return 0

    cdef take_chunks(self, Client client):
        """What was noted for a client: bytes, or a list of bytes when there are several."""
        cdef list chunks = client.chunks
        if len(chunks) == 1:
            data = chunks[0]
            chunks.clear()
            return data
        if not chunks:
            return b""
        client.chunks = []
        return chunks

    cdef int release(self, Client client, data) except -1:
        """Everything executed before these bytes is durable: let them go."""
        if client.closed:
            return 0
        if data:
            self.transmit(client, data)
            client.full = client.full or client.paused
        if client.close_after_reply:
            if not client.held_pieces and not client.dirty:
                client.end(True)
        elif client.producer is not None:
            self.pump(client)
        elif client.full:
            self.room(client)
        return 0

    def durable(self, sequence) -> None:
        """The journal has made everything up to this sequence number durable."""
        cdef Client client
        cdef uint64_t size
        while self.held and self.held[0][0] <= sequence:
            _, client, data = self.held.popleft()
            client.held_pieces -= 1
            size = size_of(data)
            client.held_bytes -= size
            self.held_bytes -= size
            self.release(client, data)

    cdef int journal_failed(self, bint tick_failed) except -1:
        """What waits for the journal has an unknown outcome: those connections are closed. So are
        those that the tick under way has data for, if what it has done is in no frame either."""
        cdef Client client
        cdef uint64_t size
        if tick_failed:
            for client in list(self.dirty_clients):
                if client.shown_data and not client.closed:
                    client.end(False)
        while self.held:
            _, client, data = self.held.popleft()
            client.held_pieces -= 1
            size = size_of(data)
            client.held_bytes -= size
            self.held_bytes -= size
            if not client.closed:
                client.end(False)
        return 0

    def room(self, Client client not None) -> None:
        """The client has taken what it was sent: go on with a long reply or its next requests."""
        if client.closed:
            return
        if client.producer is not None:
            self.pump(client)
        elif client.full and not client.held_pieces and not client.paused:
            client.full = False
            self.resume(client)

    def pump(self, Client client not None) -> None:
        """Send the next slice of a long reply; one a turn, so that others get theirs."""
        if client.closed or client.producer is None:
            return
        if client.dirty or client.held_pieces:
            return  # its first slice is still to come; the release of that one starts again
        if client.producer.prepare():
            self.loop.call_soon(self.pump, client)
            return
        if client.paused:
            return
        data = client.producer.next_slice()
        if data:
            self.transmit(client, data)
            self.loop.call_soon(self.pump, client)
            return
        client.producer = None
        if client.pushes is not None:
            client.held_bytes -= size_of(client.pushes)
            client.chunks += client.pushes
            client.pushes = None
            self.put(client, None, True)
        if client.full:
            self.room(client)
        else:
            self.resume(client)
