# cython: language_level=3, wraparound=False, cdivision=True
"""The outbox: collects replies and messages, and decides when they may be sent.

Replies of one tick are collected per client and sent in one write at its end. They are held, in
order, until the journal has made durable what was executed before them. Long replies are sent in
slices, one per turn, as the client reads them.

A message for many clients is one bytes object in many lists. The pieces of a tick are passed to the
transport as a list, and only the transport joins them when it sends. A message to a client that
does not read therefore costs one reference, however much already waits for that client.

One turn of the event loop sends to a limited number of clients, and a limited number of bytes. The
rest is sent in the next turns, between which other clients are served. A client whose requests
cause more output for others waits until that output is sent, so the rest cannot grow without limit.

A client's requests run unless it is in one of these states; each state has one end:

| state | since | until |
|---|---|---|
| `blocked` | its read returned a Wait, or a request was postponed | served, timed out, or the reason is over |
| `producer` | its reply is sent in slices | the last slice was sent (`pump`) |
| `full` | more than OUTPUT_MAX is held or made, or the transport is `paused` | everything was sent (`on_writable`) |
| `close_after_reply` | QUIT, a protocol error, the end of its input | the last reply was sent; then it is closed |
| `closed` | killed or disconnected | final |
"""

from libc.stdint cimport UINT64_MAX, int64_t, uint64_t

import logging
from collections import deque

from millstream.commands.engine.search_work cimport SearchTurns
from millstream.commands.runtime.context cimport Session
from millstream.server.clock cimport monotonic_ns

LOGGER = logging.getLogger("millstream")


cdef class Client(Session):
    """A client as the executor sees it. The transport implements `transmit` and `end`, and sets
    `paused` while the client does not read."""

    cpdef int transmit(self, bytes data) except -1:
        """Send these bytes after all earlier ones."""
        raise NotImplementedError

    cpdef int transmit_all(self, list pieces, uint64_t size) except -1:
        """Like `transmit`, for several bytes objects with `size` bytes in total. The client becomes
        the owner of the list."""
        return self.transmit(b"".join(pieces))

    cpdef int end(self, bint after_reply) except -1:
        """Close the connection, immediately or when everything transmitted has been sent."""
        raise NotImplementedError

    cpdef int regulate(self) except -1:
        """Resume reading requests from the transport, or pause it while many requests wait."""
        return 0

    cdef bint stopped(self) noexcept:
        """True if no further request of this client may run at present."""
        return (self.blocked or self.full or self.closed or self.close_after_reply
                or self.producer is not None)

    cdef bint has_more(self) noexcept:
        """True if it has sent requests that were not run yet."""
        return self.postponed is not None or self.parser.waiting_bytes() > 0

    def is_stopped(self) -> bool:
        """`stopped`, for Python."""
        return self.stopped()

    def postponed_words(self) -> list:
        """The postponed request."""
        return [] if self.postponed is None else self.postponed.all()

    @property
    def has_long_reply(self) -> bool:
        """True while a reply is sent in parts."""
        return self.producer is not None

    @property
    def query_buffer_bytes(self) -> int:
        """Bytes received and not executed yet."""
        return 0 if self.parser is None else self.parser.waiting_bytes()

    @property
    def query_buffer_free_bytes(self) -> int:
        """Additional memory: the free part of the receive buffer, and the positions of words."""
        if self.parser is None:
            return 0
        return self.parser.capacity - self.parser.waiting_bytes() + self.parser.table_bytes()

    @property
    def output_bytes(self) -> int:
        """Bytes of replies that were not sent yet."""
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


cdef class FrameNumbers:
    """The numbers of the last frame of the journal, and of the last one that is durable. The outbox
    reads them at the end of each tick."""


cdef class Outbox:
    """Replies that are not sent yet. `resume(client)` is called when a client may run again.

    `check_output(client)` may close a client whose unsent output is too large. It is called when
    the output grows: for held output from `least_limit_bytes` on. `lagging` are the clients with
    that much output, or that do not read; the code that checks them removes them. `noted_bytes` is
    the size of this tick's replies so far, `held_bytes` the size of all output that waits for the
    journal. `late` are clients whose output is sent in a later turn. `hold_point` has the last frame
    that the replicas made safe as `seq`, if replies wait for them too (new ones do not while it
    `shows_unconfirmed`). `hold_times.add(ns)`, unless
    it is None, is called once for each tick whose replies were held.
    """

    def __init__(self, FrameNumbers commits not None, loop, resume):
        self.commits = commits
        self.loop = loop
        self.resume = resume
        self.dirty_clients = []
        self.late = deque()
        self.crowding = []
        self.held = deque()
        self.durable_seq = 0
        self.hold_starts = deque()  # (frame, nanoseconds) of each tick with held replies
        self.check_output = None
        self.least_limit_bytes = UINT64_MAX
        self.lagging = set()
        self.search_turns = SearchTurns(loop.call_soon)

    cdef int put(self, Client client, bytes data, bint shows_data) except -1:
        """Add bytes for a client, to be sent at the end of the tick. None stands for a client that
        must only be closed, the beginning of a long reply, or a dropped reply; later replies keep
        their order."""
        if data is not None:
            client.chunks.append(data)
            self.noted_bytes += len(data)
        client.shown_data = client.shown_data or shows_data
        if not client.dirty:
            client.dirty = True
            self.dirty_clients.append(client)
        return 0

    cdef int push(self, Client client, bytes data, bint shows_data) except -1:
        """Like `put`, for a separate message, which is never sent between the slices of a reply."""
        if client.producer is not None:
            if client.pushes is None:
                client.pushes = []
            client.pushes.append(data)
            client.held_bytes += len(data)
            return self.check_held(client)
        return self.put(client, data, shows_data)

    def hold_age_ms(self, now_ms):
        """The time for which the oldest output has been held, at this time on the steady clock; 0
        without output."""
        return max(now_ms - self.held[0][3], 0) if self.held else 0

    cdef int check_held(self, Client client) except -1:
        """Check the limits of a client after its held output has grown."""
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
        """End the tick: send the collected bytes, or hold them until the journal is durable. Bytes
        that show no data need not wait for the journal, only for earlier output to the same
        client."""
        cdef Client client
        cdef list clients = self.dirty_clients
        cdef int64_t last = self.commits.last_seq
        cdef bint hold = self.begin_turn(last)
        cdef uint64_t end_bytes = self.bytes_out + TURN_BYTES
        cdef Py_ssize_t at = 0
        cdef int held = 0
        self.dirty_clients = []
        for client in clients:
            if at == TURN_CLIENTS or self.bytes_out > end_bytes:
                if not self.late:
                    self.loop.call_soon(self.send_late)
                self.late.extend(clients[at:])
                self.late_bytes += self.noted_bytes
                break
            at += 1
            held += self.send_to(client, hold, last)
        self.noted_bytes = 0
        return self.end_turn(held, last)

    cdef bint begin_turn(self, int64_t last) except -1:
        """True if output that shows frame `last` has to wait for the disk or for replicas."""
        cdef bint hold = self.commits.durable_seq < last or (
            self.hold_point is not None and self.hold_point.seq < last
            and not self.hold_point.shows_unconfirmed)
        if self.held and not hold:
            # The loop itself has written the frame that earlier replies wait for: the journal's
            # mode has changed, or the frame was one of groups (appendfsync-groups).
            self.durable(last)
        return hold

    def send_late(self) -> None:
        """Send the collected bytes of clients for which there was no time in an earlier turn."""
        cdef int64_t last
        cdef bint hold
        cdef uint64_t end_bytes = self.bytes_out + TURN_BYTES
        cdef Py_ssize_t sent = 0
        cdef int held = 0
        # The bytes of a late client may show changes of the tick that has begun since.
        self.commits.flush_tick()
        last = self.commits.last_seq
        hold = self.begin_turn(last)
        while self.late and sent < TURN_CLIENTS and self.bytes_out <= end_bytes:
            sent += 1
            held += self.send_to(self.late.popleft(), hold, last)
        if self.late:
            self.loop.call_soon(self.send_late)
        self.end_turn(held, last)

    def flush(self) -> None:
        """Send all output that may be sent now, however much it is."""
        while self.late:
            self.send_late()
        while self.releasing:
            self.release_held()

    cdef int end_turn(self, int held, int64_t last) except -1:
        """Note since when `held` clients wait for frame `last`. Continue with the clients that caused
        much output, when all of it has been sent."""
        cdef Client client
        if held and self.hold_times is not None:
            self.hold_starts.append((last, monotonic_ns()))
        if self.late:
            return 0
        self.late_bytes = 0
        if not self.dirty_clients:
            self.noted_bytes = 0
        if self.crowding:
            clients, self.crowding = self.crowding, []
            for client in clients:
                self.resume(client)
        return 0

    cdef bint is_crowded(self) noexcept:
        """True if the output that is collected is more than one turn sends."""
        return self.noted_bytes + self.late_bytes > TURN_BYTES

    cdef int send_to(self, Client client, bint hold, int64_t last) except -1:
        """Send a client's collected bytes; 1 if they are held until frame `last` is durable."""
        cdef object data
        cdef bint shown_data
        cdef uint64_t size
        client.dirty = False
        if client.closed:
            return 0
        data = self.take_chunks(client)
        shown_data = client.shown_data
        client.shown_data = False
        if not client.held_pieces and not (hold and shown_data):
            self.release(client, data)
            return 0
        client.held_pieces += 1
        size = size_of(data)
        client.held_bytes += size
        self.held_bytes += size
        client.full = client.full or client.held_bytes > OUTPUT_MAX
        self.held.append((last, client, data, self.now_ms))
        self.check_held(client)
        return 1

    cdef take_chunks(self, Client client):
        """The collected output of a client: bytes, or a list of several bytes objects."""
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
        """Send these bytes: everything executed before them is durable."""
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
            self.on_writable(client)
        return 0

    def durable(self, int64_t sequence) -> None:
        """Release replies: the journal is durable up to this sequence number. Replies that wait for
        replicas, too, are released up to the hold point."""
        cdef uint64_t now_ns
        if self.hold_point is not None and self.hold_point.seq < sequence:
            sequence = self.hold_point.seq
        if self.hold_starts:
            now_ns = monotonic_ns()
            while self.hold_starts and self.hold_starts[0][0] <= sequence:
                self.hold_times.add(now_ns - <uint64_t>self.hold_starts.popleft()[1])
        if self.releasing:
            self.durable_seq = max(self.durable_seq, sequence)
        else:
            self.durable_seq = sequence
            self.release_held()

    def release_held(self) -> None:
        """Send held output that is durable, within the limits of one turn."""
        cdef Client client
        cdef uint64_t size
        cdef uint64_t end_bytes = self.bytes_out + TURN_BYTES
        cdef Py_ssize_t sent = 0
        self.releasing = False
        if self.hold_point is not None and self.hold_point.seq < self.durable_seq:
            self.durable_seq = self.hold_point.seq  # in a later turn: a lease may have ended
        while self.held and self.held[0][0] <= self.durable_seq:
            if sent == TURN_CLIENTS or self.bytes_out > end_bytes:
                self.releasing = True
                self.loop.call_soon(self.release_held)
                return
            sent += 1
            _, client, data, _ = self.held.popleft()
            client.held_pieces -= 1
            size = size_of(data)
            client.held_bytes -= size
            self.held_bytes -= size
            self.release(client, data)

    cdef int journal_failed(self, bint tick_failed) except -1:
        """Close the connections whose replies wait for the journal, because their outcome is
        unknown. If the effects of the current tick are in no frame either, also close the
        connections with data from this tick."""
        cdef Client client
        cdef uint64_t size
        self.hold_starts.clear()
        self.durable_seq = 0  # the numbers of frames may begin again
        if tick_failed:
            for client in [*self.dirty_clients, *self.late]:
                if client.shown_data and not client.closed:
                    client.end(False)
        while self.held:
            _, client, data, _ = self.held.popleft()
            client.held_pieces -= 1
            size = size_of(data)
            client.held_bytes -= size
            self.held_bytes -= size
            if not client.closed:
                client.end(False)
        return 0

    @property
    def held_count(self) -> int:
        """The number of held pieces of output, at most one for each client and tick."""
        return len(self.held)

    def on_writable(self, Client client not None) -> None:
        """The client has read its output: continue a long reply or run its next requests."""
        if client.closed:
            return
        if client.feed is not None:
            client.feed.pump()
        if client.producer is not None:
            self.pump(client)
        elif client.full and not client.held_pieces and not client.paused:
            client.full = False
            self.resume(client)

    def pump(self, Client client not None) -> None:
        """Send the next slice of a long reply; one per turn, so that other clients are served. If
        it cannot be made, close the connection, because the rest of the reply is missing."""
        if client.closed or client.producer is None:
            return
        if client.dirty or client.held_pieces:
            return  # its first slice is not released yet; its release calls this again
        try:
            is_searching = client.producer.prepare()
            self.search_turns.renew_soon()
            if is_searching:
                self.loop.call_soon(self.pump, client)
                return
            if client.paused:
                return
            data = client.producer.next_slice()
        except Exception:
            LOGGER.exception("a long reply failed; closing client %s", client.address)
            client.end(False)
            return
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
            self.on_writable(client)
        else:
            self.resume(client)
