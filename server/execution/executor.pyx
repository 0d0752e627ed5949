# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Batches and ticks: which client's requests run when, and what happens after them.

A batch is everything that one client sent at once; a tick is everything that happens in one turn of
the event loop. Within a batch each request runs to its end (server/execution/request_runner).
Readers that a command made ready are served right after that command, never inside it. At the end
of the tick the effects of all batches become one journal frame (several when they are large), and
then each client gets one write. Until everything that was executed is durable, all output to
clients, including replies to reads, is held in order.

Clients are abstract here (bytes in, `transmit` out), so tests run the same code without sockets.
Time and timers come from the server object.
"""

from libc.stdint cimport int64_t, uint64_t

from collections import deque
import logging

from millstream.commands.runtime.arguments cimport OwnedArgs
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.effects cimport Effects
from millstream.commands.runtime.replies cimport put_reply
from millstream.encoding cimport Output
from millstream.server.execution.clocks cimport Clocks
from millstream.server.execution.admission cimport Admission
from millstream.server.execution.blocking cimport Serving
from millstream.server.execution.lookup cimport Statistics, Table
from millstream.server.execution.request_runner cimport RequestRunner
from millstream.server.monitor.histogram cimport Histogram
from millstream.server.protocol.outbox cimport OUTPUT_MAX, Client, Outbox
from millstream.server.protocol.resp cimport COMPLETE, EMPTY, INLINE, NEED_MORE, Parser

from millstream.errors import CommandError
from millstream.server.execution.backpressure import Backpressure
from millstream.server.execution.blocking import UNBLOCKED
from millstream.server.execution.client_pause import Pauses
from millstream.server.execution.clocks import wall_clock_ms
from millstream.server.execution.due_work import DueWork
from millstream.server.execution.eviction import EvictionWork
from millstream.server.execution.timers import Timers
from millstream.storage.blocks.lazyfree import TO_FREE, discard_items

LOGGER = logging.getLogger("millstream")

cdef enum:
    RESUMED_MAX = 1000
    # Time limit for one client's requests before other clients are served, checked after this
    # number of requests.
    BATCH_NS = 2000000
    BATCH_MIN_NS = 100000
    BATCH_CHECK = 16
    # Time limit, in one turn of the loop, for clients that continue with earlier requests.
    RESUMED_NS = 4000000
    # If the effects of a tick are larger, its frame ends between two requests; if its replies are
    # larger, the tick ends between two clients. The queue is checked after a small part of that
    # size.
    TICK_BYTES = 4194304
    CHECK_PARTS = 16


cdef class Executor:
    """Runs the commands of all clients of one server.

    The reasons to refuse requests are in `admission`. `eviction_work` and `due` do work without a
    request; `pauses` postpones requests.
    """

    def __init__(self, server):
        self.server = server
        self.keyspace = server.keyspace
        self.persistence = server.persistence
        self.commits, self.refusal = self.persistence.commits, self.persistence.refusal
        self.loop = server.loop
        # None: the machine's clock, read without a call through Python.
        clock = None if server.now_ms is wall_clock_ms else server.now_ms
        self.clocks = Clocks(
            clock, getattr(server, "steady_clock", None), getattr(server, "steady_ms", None))
        self.effects = Effects(True, self.commits.make_room)
        self.context = Context(self.keyspace, self.effects, server)
        self.timers = Timers()
        self.outbox = Outbox(self.commits, self.loop, self.resume)
        self.tick_times = Histogram()
        self.hold_times = self.outbox.hold_times = Histogram()
        self.resumable = deque()
        self.statistics = Statistics(server, clock)
        self.serving = Serving(self.context, self.outbox, self.statistics, self.timers,
                               self.resumable.append)
        self.admission = Admission(server, self.context)
        self.runner = RequestRunner(self.context, self.admission, self.serving, self.resume,
                                    self.push_encoded)
        self.runner.backpressure = self.backpressure = Backpressure(self.commits, self.outbox)
        self.runner.tick_bytes = TICK_BYTES
        self.limits, self.monitors = self.runner.limits, self.runner.monitors
        self.audit = self.runner.audit
        self.pauses = Pauses(self)
        self.eviction_work = EvictionWork(self)
        self.due = DueWork(self, self.timers)
        self.commits.listen(self.outbox, self)

    @property
    def loading(self) -> bool:
        """True if data is being loaded from the disk: most commands are refused, and there are no
        automatic changes. Work that becomes due meanwhile is done afterwards."""
        return self.admission.loading

    def begin_loading(self) -> None:
        self.admission.set_loading(True)

    def end_loading(self) -> None:
        self.admission.set_loading(False)
        self.check_due()

    def attach(self, Client client not None) -> None:
        """Register a new client."""
        client.parser = Parser(self.limits)
        client.chunks = []
        client.reading = True

    def detach(self, Client client not None) -> None:
        """Forget a disconnected client: its wait and its unsent output."""
        client.closed = True
        if client.queue is not None or client.watches:
            client.leave_transaction()
        if client.monitoring:
            self.monitors.pop(client.id, None)
        if client.postponed is not None:
            client.postponed = None
            self.pauses.forget(client)
            self.admission.forget_parked(client)
        if self.backpressure.clients or self.backpressure.unread:
            self.backpressure.forget(client)
        if client.waiter is not None:
            if self.runner.current is None:
                self.set_clocks()
            self.serving.leave(client)
            self.schedule_tick()
        client.producer = None
        client.chunks = []
        if client.pushes is not None:
            discard_items(client.pushes)
            client.pushes = None

    # ------------------------------------------------------------ clocks and limits

    def read_clocks(self) -> tuple[int, int]:
        """The time of day and the steady clock, in milliseconds."""
        return self.clocks.now()

    def read_ns(self) -> int:
        """Nanoseconds, for durations."""
        return self.statistics.read()

    cdef int set_clocks(self) except -1:
        self.clocks.read(&self.context.now_ms, &self.context.steady_ms)
        self.context.wall_ahead_ms = self.clocks.ahead_ms
        self.keyspace.set_now(self.context.now_ms + self.clocks.primary_ahead_ms,
                              self.context.steady_ms)
        return 0

    cdef int watch_limits(self) except -1:
        """Read the clocks, and determine whether changes are allowed now."""
        self.set_clocks()
        problem = self.admission.read_only
        if problem is None and (refused := self.refusal.error) is not None:
            problem = refused.decode()
        self.context.write_error = problem
        if problem is None and self.effects.out.size > self.effects.room:
            problem = self.context.write_error = self.lack_of_room()
        self.admission.allow_removals(problem)
        if problem is None and (
                self.runner.pause is None and not self.admission.loading
                and not self.admission.queue_full):
            if not self.keyspace.may_delete:
                self.keyspace.may_delete = True
                self.serving.timer_stale = True
                for place in self.keyspace.deferred:
                    self.keyspace.timer_requests.append((self.context.steady_ms, *place))
                self.keyspace.deferred = []
        else:
            self.keyspace.may_delete = False
        if problem is None and self.admission.lacks_replicas is not None:
            self.context.write_error = self.admission.lacks_replicas  # not the server's own changes
        return 0

    cdef str lack_of_room(self):
        """The error of changes if the disk is full and the space for automatic changes is already
        in use; else None. Work that is postponed for this reason is retried a little later."""
        try:
            self.effects.require(0)
        except CommandError as error:
            self.due.retry_soon()
            return error.message
        return None

    def recheck_limits(self) -> None:
        """`watch_limits` for Python: outside a batch, or within a long command (DEBUG SLEEP)."""
        self.watch_limits()

    # ------------------------------------------------------------ batches

    cdef int receive(self, Client client, const char* data, Py_ssize_t size) except -1:
        """Run the requests in received bytes; keep the rest."""
        self.bytes_in += size
        self.statistics.reads += 1
        client.parser.feed(data, size)
        if client.stopped() or client.unfinished:
            client.parser.keep_rest()
            if client.parser.waiting_bytes() > self.limits.query_bytes:
                LOGGER.warning("closing client %s: unread requests of more than "
                               "client-query-buffer-limit", client.address)
                client.end(False)
            return 0
        run_or_close(self, client)
        if self.tick_scheduled and self.outbox.noted_bytes < TICK_BYTES:
            return 0
        if self.effects.out.size and not self.tick_scheduled:
            # Other clients may have requests in this turn: one frame for all of them.
            self.schedule_tick()
        else:
            self.end_tick()
        return 0

    def feed(self, Client client not None, bytes data not None) -> None:
        """`receive` for tests and other transports."""
        self.receive(client, data, len(data))

    cdef int run_batch(self, Client client) except -1:
        """Run the client's requests until no complete one is left or the client must stop. The end
        of a tick follows every batch, even without replies: it commits effects and schedules
        timers."""
        cdef RequestRunner runner = self.runner
        self.watch_limits()
        if self.memory_limit:
            self.eviction_work.enforce_limit()
        self.admission.check_batch(client)
        client.last_active_ms = self.context.steady_ms
        self.keyspace.touching = not client.no_touch
        runner.begin_batch(client)
        client.unfinished = False
        self.begun_before = self.effects.begun
        self.noted_before = self.outbox.noted_bytes
        self.batch_left = BATCH_CHECK
        self.batch_end_ns = self.statistics.read()
        if self.tick_begun_ns == 0:
            self.tick_begun_ns = self.batch_end_ns
        self.batch_end_ns += self.time_slice()
        while True:
            try:
                self.run_requests(client)
                break
            except Exception as error:
                runner.reply_exception(error)
                if client.queue is not None and not runner.running:
                    client.queue_failed = True
                runner.finish_reply(client)
        self.statistics.begin(None)
        if self.keyspace.ready:
            self.serving.serve_ready()
        if self.effects.begun != self.begun_before:
            client.wrote_seq = self.commits.last_seq + (self.effects.out.size > 0)
        if runner.pushes:
            runner.flush_pushes(client)
        client.parser.keep_rest()
        if runner.out.size and client.feed is not None:
            runner.out.clear()  # a reply between its records would be taken for one
            client.feed.drop("it sent a request on the link")
        elif runner.out.size:
            self.outbox.put(client, runner.out.take(), runner.shown_data)
        elif client.close_after_reply or client.producer is not None:
            self.outbox.put(client, None, runner.shown_data)
        runner.current = None
        if not client.reading:
            client.regulate()
        return 0

    cdef uint64_t time_slice(self) noexcept:
        """The time limit, in nanoseconds, for one client's requests: less if many clients wait."""
        cdef uint64_t share = BATCH_NS // (1 + <uint64_t>len(self.resumable) // 4)
        return max(share, <uint64_t>BATCH_MIN_NS)

    cdef int run_requests(self, Client client) except -1:
        cdef RequestRunner runner = self.runner
        cdef int state
        if client.postponed is not None and not client.stopped():
            runner.run_postponed(client)
        while True:
            if client.unfinished:
                return 0
            # After the previous request, whether it was answered or failed.
            if self.keyspace.ready:
                self.serving.serve_ready()
            if self.effects.out.size > runner.tick_bytes:
                self.end_frame()
            if runner.out.size > OUTPUT_MAX:
                client.full = True
            if client.stopped():
                return 0
            if self.outbox.noted_bytes != self.noted_before and self.outbox.is_crowded():
                # Its requests have caused much output for other clients.
                client.unfinished = True
                self.outbox.crowding.append(client)
                return 0
            self.batch_left -= 1
            if self.batch_left <= 0:
                self.batch_left = BATCH_CHECK
                if self.statistics.read() > self.batch_end_ns:
                    client.unfinished = True
                    self.resume(client)
                    return 0
            runner.begin_request()
            state = client.parser.next(client.authenticated)
            if state == COMPLETE:
                runner.execute(client, client.parser.args)
            elif state == INLINE:
                runner.execute(client, OwnedArgs(client.parser.inline_words))
            elif state == NEED_MORE:
                client.close_after_reply = client.input_ended
                return 0
            elif state == EMPTY:
                continue
            else:
                return runner.protocol_error(client)

    @property
    def current(self) -> Client | None:
        """The client whose batch is running."""
        return self.runner.current

    @property
    def has_written(self) -> bool:
        """True if the running batch has changed anything."""
        return self.effects.begun != self.begun_before

    # ------------------------------------------------------------ messages and waits

    def push(self, Client client not None, message) -> None:
        """Send a separate message to a client, after the reply of the running command."""
        cdef Output out = Output()
        put_reply(out, message, client.resp)
        self.push_encoded(client, out.take())

    def push_encoded(self, Client client not None, bytes data not None) -> None:
        """`push` for a message that is already encoded in the client's protocol."""
        self.push_to(client, data, True)

    def push_at_once(self, Client client not None, bytes data not None) -> None:
        """`push_encoded` for a message that shows no data and therefore does not wait for the
        journal."""
        self.push_to(client, data, False)

    cdef int push_to(self, Client client, bytes data, bint shows_data) except -1:
        if client.closed:
            return 0
        self.batch_left -= 1  # a message takes about as long as a request
        if client is self.runner.current:
            self.runner.pushes.append(data)
            self.runner.pushes_show_data = self.runner.pushes_show_data or shows_data
            return 0
        self.outbox.push(client, data, shows_data)
        self.schedule_tick()
        return 0

    def unblock_client(self, Client client not None, bint error) -> bool:
        """CLIENT UNBLOCK: end a client's wait as its timeout would, or with an error; False when
        it does not wait."""
        self.schedule_tick()
        return self.serving.unblock_client(client, UNBLOCKED if error else None)

    def end_wait(self, Client client not None, str error not None, *, bint close=False) -> None:
        """End a client's wait with this error; with `close`, close the connection after it."""
        if self.serving.unblock_client(client, error):
            client.close_after_reply = client.close_after_reply or close
        self.schedule_tick()

    def waiting_read(self, Client client not None) -> tuple | None:
        """The command and the blocked read of a client; None when it does not wait."""
        if client.waiter is None:
            return None
        return client.waiter.row.command, client.waiter.read

    # ------------------------------------------------------------ waiting for the disk

    def limit_queue(self, limit_bytes: int) -> None:
        """Set journal-queue-limit: how much data may wait for the disk before requests wait,
        too."""
        self.backpressure.limit_bytes = limit_bytes
        self.runner.tick_bytes = min(limit_bytes, TICK_BYTES)
        self.unchecked_bytes = self.runner.tick_bytes
        self.on_queue()

    def on_queue(self) -> None:
        """Check the queue again: less data may be waiting for the disk."""
        if self.admission.queue_full:
            self.check_queue()

    cdef int check_queue(self) except -1:
        """Postpone requests while too much data waits for the disk, and run them afterwards."""
        cdef bint full = self.backpressure.check()
        cdef Client client
        self.unchecked_bytes = 0
        if full == self.admission.queue_full:
            return 0
        self.admission.set_queue_full(full)
        if full:
            return 0
        clients, unread = self.backpressure.release()
        self.run_postponed(clients)
        for client in unread:
            client.regulate()
        return 0

    @property
    def queue_full(self) -> bool:
        """True if requests wait for the journal."""
        return self.admission.queue_full

    def run_postponed(self, clients) -> None:
        """Run the postponed requests of these clients, and their later requests, at the end of this
        tick."""
        cdef Client client
        for client in clients:
            client.blocked = False
            self.resumable.append(client)
        self.watch_limits()
        self.schedule_tick()

    # ------------------------------------------------------------ ticks

    cdef int end_frame(self) except -1:
        """Commit the effects of this tick so far, because they are large."""
        self.commits.commit(self.effects.take())
        return self.check_queue()

    def flush_tick(self) -> None:
        """Commit the effects of this tick so far, before the tick ends."""
        if self.effects.out.size:
            self.commits.commit(self.effects.take())
            self.schedule_tick()  # at whose end the frame is sent to replicas
        self.effects.forget_room()  # the next effects may go to another journal

    def changes(self) -> int:
        """The number of changes so far."""
        return self.keyspace.dirty

    cpdef int schedule_tick(self) except -1:
        """End the tick after everything that is ready now has run."""
        if not self.tick_scheduled and not self.in_turn:
            self.loop.call_soon(self.end_tick)
        self.tick_scheduled = True
        return 0

    cpdef int end_tick(self) except -1:
        """End the tick: continue with clients that may run again, commit, send."""
        cdef Client client
        cdef Py_ssize_t resumed = 0
        cdef Py_ssize_t waiting = len(self.resumable)
        cdef uint64_t end_ns = self.statistics.read() + RESUMED_NS if waiting else 0
        self.tick_scheduled = False
        # One that is added meanwhile runs after the other sockets.
        while self.resumable and resumed < RESUMED_MAX and resumed < waiting:
            client = self.resumable.popleft()
            resumed += 1
            if not client.stopped():
                run_or_close(self, client)
                if self.statistics.read() > end_ns:
                    break
        if self.serving.searching:
            self.set_clocks()
            self.serving.continue_searches()
        self.outbox.search_turns.renew_soon()
        if self.resumable or self.serving.searching:
            self.schedule_tick()
        if self.keyspace.timer_requests and not self.admission.loading:
            self.due.take_requests()
            self.serving.timer_stale = True
        if self.keyspace.expiry_noted:
            self.keyspace.expiry_noted = False
            self.serving.timer_stale = True
        if self.effects.out.size:
            self.unchecked_bytes += self.effects.out.size
            self.commits.commit(self.effects.take())
        if self.outbox.dirty_clients:
            self.outbox.now_ms = self.context.steady_ms
            self.outbox.send()
        if self.after_tick is not None:
            self.after_tick()
        if (self.unchecked_bytes + <int64_t>self.outbox.held_bytes) * CHECK_PARTS > self.runner.tick_bytes:
            self.check_queue()
        if self.tick_begun_ns:
            self.tick_times.add(self.statistics.read() - self.tick_begun_ns)
            self.tick_begun_ns = 0
        if self.serving.timer_stale:
            self.serving.timer_stale = False
            self.due.set_timer()
        if TO_FREE and not self.due.is_freeing:
            self.due.free_soon()

    def journal_failed(self) -> None:
        """Send no reply that depends on data that may be lost. This includes replies that wait for
        frames, and replies of the current tick, whose effects will be in no frame."""
        cdef bint tick_failed = (
            self.effects.out.size > 0 or self.commits.durable_seq < self.commits.last_seq)
        if tick_failed and self.runner.current is not None:
            self.runner.current.end(False)  # it turns the journal off after earlier changes
        self.outbox.journal_failed(tick_failed)

    def close_held(self) -> None:
        """Close the clients with replies that wait for the journal, and those whose replies of this
        tick show data. These replies must not be sent."""
        self.outbox.journal_failed(True)

    def resume(self, Client client not None) -> None:
        """Run the requests that a client sent while it was stopped, at the end of this tick."""
        self.resumable.append(client)
        self.schedule_tick()

    # ------------------------------------------------------------ changes without a request

    def applied(self) -> None:
        """Serve the readers that effects of another server have made ready."""
        self.watch_limits()
        if self.keyspace.ready:
            self.serving.serve_ready()
        if self.runner.current is None:  # no request changes anything here that could join
            self.end_tick()

    def check_due(self) -> None:
        """Do the work that became due while changes were not allowed, if they are allowed now."""
        self.watch_limits()
        self.schedule_tick()

    def serve_ready(self) -> None:
        """Serve the readers of the keys marked ready, and end the tick."""
        if self.keyspace.ready:
            self.serving.serve_ready()
        self.schedule_tick()

    # ------------------------------------------------------------ figures

    @property
    def blocked_count(self) -> int:
        return (self.serving.waiting.count + self.pauses.postponed_count
                + len(self.backpressure.clients) + self.admission.parked_count())

    def set_slow(self, int64_t slow_us, uint64_t latency_ms) -> None:
        """Set slowlog-log-slower-than (negative: none) and latency-monitor-threshold (0: none)."""
        self.statistics.set_slow(slow_us, latency_ms)

    @property
    def table(self) -> Table:
        return self.runner.table

    def reset_stats(self) -> None:
        """Forget all statistics (CONFIG RESETSTAT)."""
        self.runner.table.reset()
        if self.runner.running and self.runner.row is not None:
            self.runner.row.calls = 1  # CONFIG RESETSTAT itself counts, as in Redis
        self.statistics.reset()
        self.due.expired_count = 0
        self.bytes_in = self.outbox.bytes_out = self.outbox.writes = 0


cdef int run_or_close(Executor executor, Client client) except -1:
    """Run the client's batch; close the client if the batch fails outside its requests. No other
    client may get the replies of the batch."""
    try:
        return executor.run_batch(client)
    except BaseException:
        executor.runner.current = None
        executor.runner.out.clear()
        executor.runner.pushes = []
        executor.schedule_tick()
        client.end(False)
        raise
