# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The one place where a command runs: look it up, check it, call its handler, record, reply.

A batch is what one client sent at once; a tick is all that happens in one turn of the event loop.
Within a batch each request runs to its end: the handler returns a value, which is encoded after
the replies before it, or a Wait, which parks the client. Readers that a command made ready are
served right after that command, never inside it. At the end of the tick the effects of all batches
become one journal frame (several when they are large), and then each client gets one write; while the journal has not yet made
durable what was executed, everything a client would see, reads included, is held back in order.

Clients are abstract here (bytes in, `transmit` out), so a test runs the same code without sockets;
time and timers come from the server object.
"""

from libc.stdint cimport int64_t, uint64_t

from collections import deque
from functools import partial
import logging

from millstream.commands.access.permission cimport Permission
from millstream.commands.runtime.arguments cimport Args, OwnedArgs
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.effects cimport Effects
from millstream.commands.runtime.replies cimport (
    LONG_BYTES, Encodable, Run, Sliced, SlicedBytes, Wait, put_reply,
)
from millstream.encoding cimport Output
from millstream.ids cimport Id
from millstream.server.clock cimport steady_now_ms, wall_ms
from millstream.server.execution.lookup cimport Row, Statistics, Table, unknown_command
from millstream.server.monitor.histogram cimport Histogram
from millstream.server.protocol.outbox cimport OUTPUT_MAX, Client, Outbox
from millstream.server.protocol.resp cimport (
    COMPLETE, EMPTY, INLINE, NEED_MORE, Limits, Parser, put_error,
)
from millstream.server.execution.blocking cimport Serving
from millstream.storage.streams.keyspace_core cimport DatabaseCore as Database

from millstream.commands.engine.appending import policy_moment
from millstream.commands.runtime.replies import NULL_ARRAY, Again, Several, Simple, SlicedChain
from millstream.commands.engine.group_lifecycle import group_moment
from millstream.commands.engine.settling import lease_moment
from millstream.errors import DEBUG_NOT_ALLOWED, LOADING, CommandError, wrong_arity
from millstream.server.execution.backpressure import Backpressure
from millstream.server.clock import wall_clock_ms
from millstream.server.execution.client_pause import Pause
from millstream.server.protocol.resp import encode_reply
from millstream.server.execution.blocking import INTERNAL, UNBLOCKED
from millstream.server.monitor.slowlog import without_secrets
from millstream.server.execution.timers import Ticker
from millstream.words import quoted
from millstream.storage.blocks.lazyfree import TO_FREE, discard_items, free_step

LOGGER = logging.getLogger("millstream")

cdef enum:
    RESUMED_MAX = 1000
    # Timers of a turn: a lease that ends on a cold cache takes about 5 us.
    DUE_MAX = 250
    # One client's requests run for this long, checked after this number of requests; then other
    # clients have their turn.
    BATCH_NS = 2000000
    BATCH_MIN_NS = 100000
    BATCH_LOOK = 16
    # Clients that go on with what they sent before run for this long in one turn of the loop.
    RESUMED_NS = 4000000
    EXPIRED_MAX = 200
    # Released objects are freed for this long, checked after this number of blocks or keys.
    FREE_NS = 1000000
    FREE_LOOK = 256
    # Streams looked at for their policies and blocks dropped, together, in one turn.
    TRIMMED_MAX = 1000
    # A request of more words may take long whatever its command.
    HOT_WORDS_MAX = 64
    # The effects of a batch are at most this number of times its bytes, plus this: nearly always far
    # less than the space left in the journal, and then no request has to be checked.
    BATCH_GROWTH = 8
    BATCH_EFFECTS_BYTES = 4096
    # A tick whose effects are larger ends its frame between two requests, one whose replies are
    # larger ends between two clients. After a small part of that the queue is looked at.
    TICK_BYTES = 4194304
    LOOK_PARTS = 16
    # The size of a request's effects in addition to its words, for each word and in total. Names of
    # up to some length appear in several effects; longer ones use the space that is reserved for
    # automatic changes.
    WORD_BYTES = 48
    KEY_REPEATS = 5
    NAME_BYTES = 4096
    REQUEST_EFFECTS_BYTES = 1024

cdef uint64_t NEVER = 0xffffffffffffffffULL
# The wall clock may jump: timers for a time of day check it at least this often.
cdef uint64_t WALL_LOOK_MS = 1000

ROOM_AGAIN_S = 1.0
# Between two turns that free released objects; and while a snapshot still needs them.
FREE_PAUSE_S = 0.001
FREE_AGAIN_S = 0.1
QUEUED_WORD_BYTES = 64  # cost of a queued word in addition to its own bytes
NOAUTH = "NOAUTH Authentication required."
OUT_OF_MEMORY = "OOM command not allowed when used memory > 'maxmemory'."
QUEUED = Simple(b"QUEUED")


cdef OwnedArgs kept(Args args):
    """A request's words, to be run in a later turn. Those of one that goes on from an earlier turn
    are kept as they are: they hold what is done already."""
    if not isinstance(args, OwnedArgs):
        return OwnedArgs(args.all())
    args.pos = 1
    return args



cdef class Executor:
    """Runs the commands of all clients of one server.

    `read_only`, `lacks_replicas` and `stale` are errors, None where they do not apply.

    `server` gives keyspace, persistence, loop (call_soon, call_later), now_ms(), perhaps
    steady_clock or steady_ms() for a clock that never jumps (else it is the same), and, to the
    commands, what commands/runtime/host.py names.
    """

    def __init__(self, server):
        self.server = server
        self.keyspace = server.keyspace
        self.persistence = server.persistence
        self.loop = server.loop
        # None: the machine's clock, read without a call through Python.
        self.clock = None if server.now_ms is wall_clock_ms else server.now_ms
        self.steady = getattr(server, "steady_clock", None)
        self.steady_call = getattr(server, "steady_ms", None)
        self.effects = Effects()
        self.effects.make_room = self.persistence.make_room
        self.effects.forget_room()
        self.context = Context(self.keyspace, self.effects, server)
        self.limits = Limits()
        self.ticker = Ticker()
        self.out = Output()
        self.table = Table()
        self.outbox = Outbox(self.persistence, self.loop, self.resume)
        self.tick_times = Histogram()
        self.hold_times = self.outbox.hold_times = Histogram()
        self.backpressure = Backpressure(self.persistence, self.outbox)
        self.tick_bytes = TICK_BYTES
        self.resumable = deque()
        self.statistics = Statistics(server, self.clock)
        self.serving = Serving(self.context, self.outbox, self.statistics, self.ticker,
                               self.resumable.append)
        self.timer_ms = NEVER
        self.pushes = []
        self.monitors = {}
        self.keyspace.expiring = True
        self.keyspace.on_expired = self.key_expired

    @property
    def password_required(self) -> bool:
        return self._password_required

    @password_required.setter
    def password_required(self, bint required) -> None:
        self._password_required = required
        self.set_guard()

    @property
    def has_restricted(self) -> bool:
        """Whether a client is connected whose user may not do everything."""
        return self._has_restricted

    @has_restricted.setter
    def has_restricted(self, bint restricted) -> None:
        self._has_restricted = restricted
        self.set_guard()

    cdef int set_guard(self) noexcept:
        """Requests are looked at more closely while there is something to reply_error them for."""
        self.has_checks = (self._password_required or self._has_restricted or self._loading
                        or self.memory_full or self.near_journal_limit or self.queue_full
                        or self._stale is not None)
        return 0

    @property
    def out_of_memory(self):
        """The error of commands that need memory while there is none; else None."""
        return OUT_OF_MEMORY if self.memory_full else None

    @property
    def stale(self):
        return self._stale

    @stale.setter
    def stale(self, str error) -> None:
        self._stale = error
        self.set_guard()

    @property
    def loading(self) -> bool:
        """Whether the data is being read from the disk: most commands are refused, and there are no
        automatic changes. What became due in the meantime is done afterwards."""
        return self._loading

    @loading.setter
    def loading(self, bint loading) -> None:
        self._loading = loading
        self.set_guard()
        if not loading:
            self.look_for_due()

    def attach(self, Client client not None) -> None:
        """Take a new client in."""
        client.parser = Parser(self.limits)
        client.chunks = []
        client.reading = True

    cdef uint64_t read_clock(self) except? 0:
        return wall_ms() if self.clock is None else self.clock()

    cdef uint64_t read_steady(self, uint64_t now_ms) except? 0:
        """The clock that never jumps; `now_ms` where the server has but one."""
        if self.steady is not None:
            return steady_now_ms(self.steady)
        return now_ms if self.steady_call is None else self.steady_call()

    cdef int look_at_clocks(self) except -1:
        self.context.now_ms = self.read_clock()
        self.context.steady_ms = self.read_steady(self.context.now_ms)
        self.keyspace.set_now(self.context.now_ms + self.primary_ahead_ms, self.context.steady_ms)
        return 0

    # ------------------------------------------------------------ requests

    cdef int receive(self, Client client, bytes data) except -1:
        """A client sent bytes: run what can run, keep the rest."""
        self.bytes_in += len(data)
        self.statistics.reads += 1
        client.parser.feed(data, len(data))
        if client.stopped() or client.unfinished:
            client.parser.keep_rest()
            if client.parser.waiting_bytes() > self.limits.query_bytes:
                LOGGER.warning("closing client %s: unread requests of more than "
                               "client-query-buffer-limit", client.address)
                client.end(False)
            return 0
        self.run_batch(client)
        if self.tick_scheduled and self.outbox.noted_bytes < TICK_BYTES:
            return 0
        if self.effects.out.size and not self.tick_scheduled:
            # Others may still have something to say in this turn: one frame for all of it.
            self.schedule_tick()
        else:
            self.end_tick()
        return 0

    def feed(self, Client client not None, bytes data not None) -> None:
        """`receive` for tests and other transports."""
        self.receive(client, data)

    cdef int watch_limits(self) except -1:
        """Read the clocks, and whether anything may be changed now."""
        self.look_at_clocks()
        problem = self.read_only
        if problem is None:
            problem = self.persistence.writable_error()
            problem = None if problem is None else problem.decode()
        self.context.write_error = problem
        if problem is None and self.effects.out.size > self.effects.room:
            problem = self.context.write_error = self.lack_of_room()
        if problem is None and self.pause is None and not self._loading and not self.queue_full:
            if not self.keyspace.may_delete:
                self.keyspace.may_delete = True
                self.serving.timer_stale = True
                for place in self.keyspace.deferred:
                    self.keyspace.timer_requests.append((self.context.steady_ms, *place))
                self.keyspace.deferred = []
        else:
            self.keyspace.may_delete = False
        if problem is None and self.lacks_replicas is not None:
            self.context.write_error = self.lacks_replicas  # the server's own changes go on
        return 0

    cdef str lack_of_room(self):
        """Why nothing may be changed now: the space kept for automatic changes is being used, and
        the disk is full. What is put off for this reason is tried again a little later."""
        try:
            self.effects.require(0)
        except CommandError as error:
            if not self.lacked_room:
                self.lacked_room = True
                self.loop.call_later(ROOM_AGAIN_S, self.look_for_due_again)
            return error.message
        return None

    def look_for_due_again(self) -> None:
        self.lacked_room = False
        self.look_for_due()

    cdef int watch_room(self, Client client) except -1:
        """Look at each request of a batch whose effects could be more than the journal has room
        for."""
        cdef bint near_journal_limit = client.postponed is not None
        if not self.effects.enabled:
            near_journal_limit = False
        elif not near_journal_limit:
            near_journal_limit = (self.effects.out.size + BATCH_EFFECTS_BYTES
                     + BATCH_GROWTH * client.parser.unread_bytes() > self.effects.room)
        if near_journal_limit != self.near_journal_limit:
            self.near_journal_limit = near_journal_limit
            self.set_guard()
        return 0

    def recheck_limits(self) -> None:
        """Read the clock again within a long command (DEBUG SLEEP)."""
        self.watch_limits()

    cdef int run_batch(self, Client client) except -1:
        """Run the client's requests until none is complete or it has to stop.

        A tick's end follows every batch, whether or not there is something to say: it records what
        was done and notes what falls due.
        """
        self.watch_limits()
        if self.memory_limit:
            self.make_room()
        self.watch_room(client)
        client.last_active_ms = self.context.steady_ms
        self.keyspace.touching = not client.no_touch
        self.current = client
        self.row = None
        self.statistics.timed = None
        client.unfinished = False
        self.begun_before = self.effects.begun
        self.shown_data = False
        self.batch_left = BATCH_LOOK
        self.batch_end_ns = self.statistics.read()
        if self.tick_begun_ns == 0:
            self.tick_begun_ns = self.batch_end_ns
        self.batch_end_ns += self.time_slice()
        while True:
            try:
                self.run_requests(client)
                break
            except Exception as error:
                self.reply_exception(error)
                if client.queue is not None and not self.running:
                    client.queue_failed = True
                self.finish_reply(client)
        self.statistics.begin(None)
        if self.keyspace.ready:
            self.serving.serve_ready()
        if self.effects.begun != self.begun_before:
            client.wrote_seq = self.persistence.last_seq + (self.effects.out.size > 0)
        if self.pushes:
            self.flush_pushes(client)
        client.parser.keep_rest()
        if self.out.size and client.feed is not None:
            self.out.clear()  # a reply between its records would be taken for one
            client.feed.drop("it sent a request on the link")
        elif self.out.size:
            self.outbox.put(client, self.out.take(), self.shown_data)
        elif client.close_after_reply or client.producer is not None:
            self.outbox.put(client, None, self.shown_data)
        self.current = None
        if not client.reading:
            client.regulate()
        return 0

    cdef uint64_t time_slice(self) noexcept:
        """How long, in nanoseconds, one client's requests may run: less when many have to wait."""
        cdef uint64_t waiting = len(self.resumable)
        cdef uint64_t share = BATCH_NS // (1 + waiting // 4)
        return share if share > <uint64_t>BATCH_MIN_NS else <uint64_t>BATCH_MIN_NS

    cdef int reply_exception(self, error) except -1:
        """A command failed: answer why."""
        if isinstance(error, CommandError):
            return self.reply_error(error.message)
        self.out.size = self.reply_start
        if isinstance(error, MemoryError):
            LOGGER.error("a command ran out of memory: %s", error)
            return self.reply_error("OOM " + (str(error) or "out of memory"))
        # A fault of ours: this one command fails, the server goes on and says where.
        LOGGER.error("command %s failed", self.row.name if self.row else "?", exc_info=error)
        return self.reply_error(INTERNAL)

    cdef int run_requests(self, Client client) except -1:
        cdef int state
        if client.postponed is not None and not client.stopped():
            args = client.postponed
            client.postponed = None
            self.reply_start = self.out.size
            self.running = False
            self.execute(client, args)
        while True:
            if client.unfinished:
                return 0
            # After the previous request, whether it was answered or failed.
            if self.keyspace.ready:
                self.serving.serve_ready()
            if self.effects.out.size > self.tick_bytes:
                self.end_frame()
            if self.out.size > OUTPUT_MAX:
                client.full = True
            if client.stopped():
                return 0
            self.batch_left -= 1
            if self.batch_left == 0:
                self.batch_left = BATCH_LOOK
                if self.statistics.read() > self.batch_end_ns:
                    client.unfinished = True
                    self.resume(client)
                    return 0
            self.reply_start = self.out.size
            self.running = False
            state = client.parser.next(client.authenticated)
            if state == COMPLETE:
                self.execute(client, client.parser.args)
            elif state == INLINE:
                self.execute(client, OwnedArgs(client.parser.inline_words))
            elif state == NEED_MORE:
                return 0
            elif state == EMPTY:
                continue
            else:
                return self.protocol_error(client)

    cdef int protocol_error(self, Client client) except -1:
        """The byte stream is broken: say so and close this connection alone."""
        client.close_after_reply = True
        if client.parser.error:
            message = client.parser.error.decode("latin-1")
            LOGGER.debug("closing client %s: %s", client.address, message)
            self.reply_error("ERR " + message)
        else:
            LOGGER.warning("closing client %s: a request of more than client-query-buffer-limit",
                           client.address)
        return 0

    cdef int execute(self, Client client, Args args) except -1:
        cdef Context context = self.context
        cdef Row row = self.table.find(args, self.statistics.timed)
        self.row = row
        if row is None:
            return self.refuse_unknown(client, args)
        if args.count != row.arity and (row.arity > 0 or args.count < -row.arity):
            row.rejected += 1
            raise self.wrong_words(client, row)
        if row.protected and not self.server.may_debug(client):
            row.rejected += 1
            raise CommandError(DEBUG_NOT_ALLOWED)
        if self.has_checks:
            self.check_access(client, row, args)
            if self.queue_full and row.waits_when_full:
                return self.hold_back(client, args)
        if row.writes and context.write_error is not None:
            row.rejected += 1
            raise CommandError(context.write_error)
        if self.near_journal_limit and row.writes:
            self.require_room(row, args)
        client.last_command = row.name
        if self.pause is not None and client.feed is None and self.pause.puts_off(
                row, args, client.queue):
            return self.postpone(client, args)
        if client.special and self.queue_for_exec(client, row, args):
            return 0
        return self.run_row(client, row, args)

    cdef int check_access(self, Client client, Row row, Args args) except -1:
        """Refuse what needs a password first, or what the user may not do, or the data before it is
        loaded, or more memory than may be used."""
        if self._password_required and not client.authenticated and not row.open_to_all:
            row.rejected += 1
            raise CommandError(NOAUTH)
        if client.permission is not None:
            self.check_permission(client, row, args, False)
        if self._loading and not row.while_loading:
            row.rejected += 1
            raise CommandError(LOADING)
        if self._stale is not None and not row.while_stale:
            row.rejected += 1
            raise CommandError(self._stale)
        if self.memory_full and row.needs_memory:
            row.rejected += 1
            raise CommandError(OUT_OF_MEMORY)
        return 0

    cdef int check_permission(self, Client client, Row row, Args args, bint at_exec) except -1:
        """Refuse what the client's user may not do."""
        if (<Permission>client.permission).passes(row.demand, args):
            return 0
        error = self.server.access.refusal(
            client, row.command, args.all(), at_exec or client.queue is not None, at_exec)
        if error is None:
            return 0
        row.rejected += 1
        raise error

    cdef int require_room(self, Row row, Args args) except -1:
        """Refuse a write whose effects the journal may have no room for."""
        try:
            self.effects.require(effects_most(args))
        except CommandError:
            row.rejected += 1
            raise
        return 0

    cdef wrong_words(self, Client client, Row row):
        error = wrong_arity(row.name)
        if row.name != "exec":
            return error
        client.leave_transaction()
        reason = error.message.removeprefix("ERR ")
        return CommandError(f"EXECABORT Transaction discarded because of: {reason}")

    cdef int run_row(self, Client client, Row row, Args args) except -1:
        """Run a command that may run."""
        cdef Context context = self.context
        if row is not self.statistics.timed:
            self.statistics.begin(row)
        row.calls += 1
        self.running = True
        self.shown_data = self.shown_data or row.shows_data
        self.statistics.commands += 1
        client.total_commands += 1
        context.session = client
        context.db = <Database>self.keyspace.databases[client.db_index]
        if self.monitors and row.shown_to_monitors:
            self.call_shown(client, row, args)
        else:
            self.call(client, row, args)
        if client.special or self.pushes:
            self.finish_reply(client)
        if not row.hot or self.statistics.exact or args.count > HOT_WORDS_MAX or context.timed_alone:
            context.timed_alone = False
            self.statistics.finish(row, client, args, context.now_ms)
        return 0

    cdef int call(self, Client client, Row row, Args args) except -1:
        """Call a command's handler and encode what it returns."""
        reply = row.handler(self.context, args)
        if type(reply) is Id or type(reply) is int:
            return put_reply(self.out, reply, client.resp)
        if reply is None or type(reply) is Simple or reply is NULL_ARRAY or (
                type(reply) is bytes and len(<bytes>reply) <= LONG_BYTES):
            put_reply(self.out, reply, client.resp)
        elif isinstance(reply, Encodable):
            (<Encodable>reply).encode(self.out, client.resp)
            client.producer = (<Encodable>reply).rest()
        else:
            self.encode_other(client, reply)
        client.special = client.is_special()
        return 0

    cdef int call_shown(self, Client client, Row row, Args args) except -1:
        """`call` while somebody runs MONITOR."""
        try:
            self.call(client, row, args)
        finally:
            # After the command: EXEC comes after what it ran, and SELECT in its new database. A
            # command that goes on from an earlier turn was shown then.
            if getattr(args, "job", None) is None:
                self.show_monitors(client, args)
        return 0

    # ------------------------------------------------------------ what is not just run

    cdef bint queue_for_exec(self, Client client, Row row, Args args) except -1:
        """Whether a request is not run now but queued by MULTI. A RESP2 client that has subscribed
        may ask for little else."""
        if client.resp == 2 and not row.when_subscribed and (client.channels or client.patterns):
            row.rejected += 1
            raise CommandError(
                f"ERR Can't execute '{row.name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / "
                "QUIT / RESET are allowed in this context")
        if client.queue is None or not row.queued:
            return False
        if row.refused_in_multi:
            row.rejected += 1
            raise CommandError("ERR Command not allowed inside a transaction")
        words = args.all()
        client.queued_bytes += sum(map(len, words)) + QUEUED_WORD_BYTES * len(words)
        if <int64_t>client.queued_bytes > self.limits.query_bytes:
            LOGGER.warning("closing client %s: a transaction of more than "
                           "client-query-buffer-limit", client.address)
            client.end(False)
            return True
        client.queue.append((row, OwnedArgs(words), args.pos))
        put_reply(self.out, QUEUED, client.resp)
        self.finish_reply(client)
        return True

    cdef int run_queue(self, Client client, list requests) except -1:
        """EXEC: run the queued requests one after the other; none of them may wait."""
        cdef Py_ssize_t start = self.reply_start
        cdef Row row
        cdef Args args
        cdef list later = None
        cdef Py_ssize_t mark
        if self.context.write_error is not None and any((<Row>row).writes for row, _, _ in requests):
            raise CommandError(
                f"EXECABORT Transaction discarded because of: {self.context.write_error}")
        if self.memory_full and any((<Row>row).needs_memory for row, _, _ in requests):
            raise CommandError(f"EXECABORT Transaction discarded because of: {OUT_OF_MEMORY}")
        self.require_room_for_all(requests)
        self.out.put_head(c'*', len(requests))
        self.context.may_block = False
        try:
            for row, args, pos in requests:
                args.pos = pos
                mark = self.out.size
                self.run_queued(client, row, args)
                if later is not None:
                    later.append(self.out.buf[mark:self.out.size])
                    self.out.size = mark
                if client.producer is not None:
                    # The rest of a long reply; what follows it in the array can only come after it.
                    later = [] if later is None else later
                    later.append(client.producer)
                    client.producer = None
            if later is not None:
                client.producer = SlicedChain(later)
        finally:
            self.context.may_block = True
            self.reply_start = start
            self.running = True
        return 0

    cdef int require_room_for_all(self, list requests) except -1:
        """A transaction's effects are part of one frame: it is refused as a whole."""
        cdef int64_t most = 0
        for row, args, _ in requests:
            if (<Row>row).writes:
                most += effects_most(<Args>args)
        if most == 0:
            return 0
        try:
            self.effects.require(most)
        except CommandError as error:
            raise CommandError(
                f"EXECABORT Transaction discarded because of: {error.message}") from None
        return 0

    cdef int run_queued(self, Client client, Row row, Args args) except -1:
        self.row = row
        self.running = False
        self.reply_start = self.out.size
        try:
            if row.writes and self.effects.out.size > self.tick_bytes:
                self.require_room(row, args)  # what ran before has recorded more than its words
            if client.permission is not None:
                self.check_permission(client, row, args, True)
            self.run_row(client, row, args)
        except Exception as error:
            self.reply_exception(error)
        return 0

    cdef int finish_reply(self, Client client) except -1:
        """A request of a client in a special state was answered: drop the reply if the client has
        replies off, and send the messages that arrived in the meantime after it."""
        if not self.context.may_block:
            return 0  # within EXEC, which concludes as a whole
        if client.postponed is not None:
            return 0  # it was not answered: it goes on in a later turn
        if client.reply_mode != "on":
            self.out.size = self.reply_start
            client.producer = None
            self.outbox.put(client, None, self.shown_data)
            if client.reply_mode == "skip":
                client.reply_mode = "skip-next"
            elif client.reply_mode == "skip-next" and not client.blocked:
                client.reply_mode = "on"
        if self.pushes:
            self.flush_pushes(client)
        client.special = client.is_special()
        return 0

    cdef int flush_pushes(self, Client client) except -1:
        cdef list pushes = self.pushes
        cdef bint shows_data = self.pushes_show_data
        self.pushes = []
        self.pushes_show_data = False
        self.shown_data = self.shown_data or shows_data
        for data in pushes:
            if client.producer is None:
                self.out.put(data)
            else:
                self.outbox.push(client, data, shows_data)
        return 0

    def push(self, Client client not None, message) -> None:
        """Send a message of its own to a client, after the reply of the command that runs."""
        cdef Output out = Output()
        put_reply(out, message, client.resp)
        self.push_encoded(client, out.take_bytes())

    def push_encoded(self, Client client not None, bytes data not None) -> None:
        """`push` for a message encoded already, in the client's protocol."""
        self.push_to(client, data, True)

    def push_at_once(self, Client client not None, bytes data not None) -> None:
        """`push_encoded` for a message that shows no data: it does not wait until what was executed
        is durable."""
        self.push_to(client, data, False)

    cdef int push_to(self, Client client, bytes data, bint shows_data) except -1:
        if client.closed:
            return 0
        if client is self.current:
            self.pushes.append(data)
            self.pushes_show_data = self.pushes_show_data or shows_data
            return 0
        self.outbox.push(client, data, shows_data)
        self.schedule_tick()
        return 0

    cdef int show_monitors(self, Client client, Args args) except -1:
        """Tell every client that runs MONITOR; passwords are left out."""
        request = " ".join(map(quoted, without_secrets(args.all())))
        seconds, rest_us = divmod(self.server.now_us(), 1000000)
        line = Simple(
            f"{seconds}.{rest_us:06d} [{client.db_index} {client.address}] {request}"
            .encode())
        forms = {}
        for monitor in list(self.monitors.values()):
            resp = monitor.resp
            if resp not in forms:
                forms[resp] = encode_reply(line, resp)
            self.push_encoded(monitor, forms[resp])
        return 0

    cdef int refuse_unknown(self, Client client, Args args) except -1:
        """No command of ours. A web page can make a browser send requests here; the first lines of
        HTTP end such a connection, as in Redis, before its body can do harm."""
        if args[0].lower() in (b"post", b"host:"):
            LOGGER.warning("closing client %s: it speaks HTTP, perhaps a web page that attacks this "
                           "server through a browser", client.address)
            client.end(False)
            return 0
        raise CommandError(unknown_command(args))

    cdef int encode_other(self, Client client, reply) except -1:
        """Replies other than an id or an integer: a Wait parks the client, and one too long to make
        at once leaves the rest to be sent in slices."""
        if type(reply) is Wait and not self.context.may_block:
            # Nothing waits in a transaction: its time is over at once.
            read = (<Wait>reply).read
            reply = read.timeout_reply(self.context)
            read.ended(self.context)
        if type(reply) is Wait:
            return self.serving.begin(client, self.row, reply)
        if type(reply) is Again:
            return self.call_again(client, reply.args)
        if type(reply) is Run:
            self.run_queue(client, (<Run>reply).requests)
        elif type(reply) is bytes and len(<bytes>reply) > LONG_BYTES:
            self.out.put_head(c'$', len(<bytes>reply))
            client.producer = SlicedBytes(reply)
        elif type(reply) is Several:
            self.put_several(client, reply)
        elif isinstance(reply, Sliced):
            client.producer = reply
        else:
            put_reply(self.out, reply, client.resp)
        return 0

    cdef int call_again(self, Client client, args) except -1:
        """A command goes on in a later turn; until then it is one that has not been called."""
        client.postponed = args
        client.unfinished = True
        self.row.calls -= 1
        self.statistics.commands -= 1
        client.total_commands -= 1
        self.resume(client)
        return 0

    cdef int put_several(self, Client client, parts) except -1:
        """Replies in order; those after one that is sent in slices wait for it."""
        cdef list later = []
        cdef Py_ssize_t mark
        for part in parts:
            mark = self.out.size
            put_reply(self.out, part, client.resp)
            if later:
                later.append(self.out.buf[mark:self.out.size])
                self.out.size = mark
            rest = (<Encodable>part).rest() if isinstance(part, Encodable) else None
            if rest is not None:
                later.append(rest)
        if later:
            client.producer = SlicedChain(later)
        return 0

    cdef int reply_error(self, str message) except -1:
        """Reply an error and count it by its code."""
        self.statistics.count_error(message)
        if self.running:
            self.row.failed += 1
        return put_error(self.out, message)

    def detach(self, Client client not None) -> None:
        """A client is gone: forget its wait and what it would have got."""
        client.closed = True
        client.leave_transaction()
        self.monitors.pop(client.id, None)
        if client.postponed is not None:
            client.postponed = None
            if self.pause is not None:
                self.pause.clients.pop(client.id, None)
        self.backpressure.forget(client)
        if client.waiter is not None:
            if self.current is None:
                self.look_at_clocks()
            self.serving.leave(client)
            self.schedule_tick()
        client.producer = None
        client.chunks = []
        if client.pushes is not None:
            discard_items(client.pushes)
            client.pushes = None

    def unblock_client(self, Client client not None, bint error) -> bool:
        """End a client's wait as if its time were over, or with an error; False when it does not
        wait (CLIENT UNBLOCK)."""
        self.schedule_tick()
        return self.serving.unblock_client(client, UNBLOCKED if error else None)

    def end_wait(self, Client client not None, str error not None) -> None:
        """End a client's wait with this error and close the connection after it."""
        if self.serving.unblock_client(client, error):
            client.close_after_reply = True
            self.schedule_tick()

    def waiting_read(self, Client client not None) -> tuple | None:
        """The command and the read with which a client waits; None when it does not wait."""
        if client.waiter is None:
            return None
        return client.waiter.row.command, client.waiter.read

    def refuse_wait(self, Client client not None, str error not None) -> None:
        """End a client's wait with this error."""
        self.schedule_tick()
        self.serving.unblock_client(client, error)

    # ------------------------------------------------------------ pausing

    @property
    def paused(self) -> bool:
        return self.pause is not None

    def start_pause(self, uint64_t until_ms, bint writes_only) -> None:
        """Put off the requests of all clients, or those that write, until a time (CLIENT PAUSE).
        The stricter kind and the later time of two pauses hold."""
        if self.pause is None:
            self.pause = Pause()
        if self.pause.alarm is not None:
            self.ticker.cancel(self.pause.alarm)
        self.pause.extend(until_ms, writes_only)
        self.pause.alarm = self.ticker.at(self.pause.until_ms, self.end_pause)
        self.serving.timer_stale = True

    def end_pause(self) -> None:
        """Run what was put off."""
        cdef Client client
        if self.pause is None:
            return
        if self.pause.alarm is not None:
            self.ticker.cancel(self.pause.alarm)
        for client in self.pause.clients.values():
            client.blocked = False
            self.resumable.append(client)
        self.pause = Pause(self.pause.reasons) if self.pause.reasons else None
        self.watch_limits()
        self.schedule_tick()

    def pause_writes(self, str reason not None) -> None:
        """Put off requests that write, until `resume_writes`, for a reason of the server's own."""
        if self.pause is None:
            self.pause = Pause()
        self.pause.reasons.add(reason)
        self.serving.timer_stale = True
        self.watch_limits()

    def resume_writes(self, str reason not None) -> None:
        """End what `pause_writes` began; other pauses go on."""
        if self.pause is None or reason not in self.pause.reasons:
            return
        self.pause.reasons.discard(reason)
        if not self.pause.reasons and not self.pause.until_ms:
            self.end_pause()

    cdef int postpone(self, Client client, Args args) except -1:
        client.postponed = kept(args)
        client.blocked = True
        self.pause.clients[client.id] = client
        return 0

    # ------------------------------------------------------------ waiting for the disk

    def limit_queue(self, limit_bytes: int) -> None:
        """How much may wait for the disk before requests do (journal-queue-limit)."""
        self.backpressure.limit_bytes = limit_bytes
        self.tick_bytes = min(limit_bytes, TICK_BYTES)
        self.unlooked_bytes = self.tick_bytes
        self.on_queue()

    cdef int hold_back(self, Client client, Args args) except -1:
        client.postponed = kept(args)
        client.blocked = True
        self.backpressure.clients[client.id] = client
        return 0

    def on_queue(self) -> None:
        """What waits for the disk may have become less."""
        if self.queue_full:
            self.look_at_queue()

    cdef int look_at_queue(self) except -1:
        """Let requests wait while too much waits for the disk, and run them afterwards."""
        cdef bint full = self.backpressure.look()
        cdef Client client
        self.unlooked_bytes = 0
        if full == self.queue_full:
            return 0
        self.queue_full = full
        self.set_guard()
        if full:
            return 0
        clients, unread = self.backpressure.release()
        for client in clients:
            client.blocked = False
            self.resumable.append(client)
        for client in unread:
            client.regulate()
        self.watch_limits()
        self.schedule_tick()
        return 0

    # ------------------------------------------------------------ ticks

    cdef int end_frame(self) except -1:
        """Commit what this tick has done so far: it is much."""
        self.persistence.commit(self.effects.take())
        return self.look_at_queue()

    cdef int schedule_tick(self) except -1:
        if not self.tick_scheduled:
            self.tick_scheduled = True
            self.loop.call_soon(self.end_tick)
        return 0

    def end_tick(self) -> None:
        """All that was ready has run: go on with clients that may run again, commit, send."""
        cdef Client client
        cdef Py_ssize_t resumed = 0
        cdef Py_ssize_t waiting = len(self.resumable)
        cdef uint64_t end_ns = self.statistics.read() + RESUMED_NS if waiting else 0
        self.tick_scheduled = False
        # Only those that may run now: a client that comes back in the meantime has its turn after
        # the other sockets.
        while self.resumable and resumed < RESUMED_MAX and resumed < waiting:
            client = self.resumable.popleft()
            resumed += 1
            if not client.stopped():
                self.run_batch(client)
                if self.statistics.read() > end_ns:
                    break
        if self.resumable:
            self.schedule_tick()
        if self.keyspace.timer_requests and not self._loading:
            for moment, db_index, key, name in self.keyspace.timer_requests:
                self.ticker.at(moment, partial(self.moment_due, db_index, key, name))
            self.keyspace.timer_requests = []
            self.serving.timer_stale = True
        if self.keyspace.expiry_noted:
            self.keyspace.expiry_noted = False
            self.serving.timer_stale = True
        if self.effects.out.size:
            self.unlooked_bytes += self.effects.out.size
            self.persistence.commit(self.effects.take())
        if self.outbox.dirty_clients:
            self.outbox.now_ms = self.context.steady_ms
            self.outbox.send()
        if (self.unlooked_bytes + <int64_t>self.outbox.held_bytes) * LOOK_PARTS > self.tick_bytes:
            self.look_at_queue()
        if self.tick_begun_ns:
            self.tick_times.add(self.statistics.read() - self.tick_begun_ns)
            self.tick_begun_ns = 0
        if self.serving.timer_stale:
            self.set_timer()
        if TO_FREE and not self.freeing:
            self.freeing = True
            self.loop.call_later(FREE_PAUSE_S, self.free_released)

    def journal_failed(self) -> None:
        """Send no reply that depends on data that may be lost. That is not only what waits for
        frames: the current tick may have done more, which no frame will have."""
        cdef bint tick_failed = (
            self.effects.out.size > 0 or self.persistence.durable_seq < self.persistence.last_seq)
        if tick_failed and self.current is not None:
            self.current.end(False)  # it switches the journal off, after what it did before
        self.outbox.journal_failed(tick_failed)

    def close_held(self) -> None:
        """Close the clients with replies that wait for the journal, and those whose replies of this
        tick show data: these replies may never be sent."""
        self.outbox.journal_failed(True)

    def free_released(self) -> None:
        """Free released parts of large streams and databases for a short time."""
        cdef uint64_t end_ns = self.statistics.read() + FREE_NS
        self.freeing = False
        while free_step(FREE_LOOK):
            if self.statistics.read() > end_ns:
                break
        else:
            if TO_FREE:
                self.freeing = True
                self.loop.call_later(FREE_AGAIN_S, self.free_released)
            return
        self.freeing = True
        self.loop.call_later(FREE_PAUSE_S, self.free_released)

    def resume(self, Client client not None) -> None:
        """Run what a client sent while it had to stop, at the end of this tick."""
        self.resumable.append(client)
        self.schedule_tick()

    # ------------------------------------------------------------ time

    cdef int set_timer(self) except -1:
        """Keep one timer, to the earliest moment that the ticker knows, or earlier: to look at the
        wall clock where something waits for a time of day."""
        cdef uint64_t next_ms = NEVER
        cdef uint64_t wall_moment_ms = self.next_wall_ms()
        cdef uint64_t now_ms, steady_ms
        self.serving.timer_stale = False
        if self.ticker.next_ms is not None:
            next_ms = self.ticker.next_ms
        if next_ms == NEVER and wall_moment_ms == NEVER:
            return 0
        now_ms = self.read_clock()
        steady_ms = self.read_steady(now_ms)
        if wall_moment_ms != NEVER:
            next_ms = min(next_ms, steady_ms + (
                min(wall_moment_ms - now_ms, WALL_LOOK_MS) if wall_moment_ms > now_ms else 0))
        if next_ms >= self.timer_ms:
            return 0
        if self.timer is not None:
            self.timer.cancel()
        self.timer_ms = next_ms
        self.timer = self.loop.call_later(
            (next_ms - steady_ms) / 1000.0 if next_ms > steady_ms else 0, self.on_timer)
        return 0

    cdef uint64_t next_wall_ms(self) except? 0:
        """The earliest time of day at which a key expires or a policy evicts something."""
        if not self.keyspace.may_delete:
            return NEVER
        expiry_ms = self.keyspace.next_expiry_ms()
        return min(NEVER if expiry_ms is None else <uint64_t>expiry_ms,
                   <uint64_t>self.keyspace.calendar.next())

    @property
    def has_written(self) -> bool:
        """Whether the batch that runs has changed something."""
        return self.effects.begun != self.begun_before

    def applied(self) -> None:
        """Effects of another server were applied: serve the readers that they made ready."""
        self.watch_limits()
        if self.keyspace.ready:
            self.serving.serve_ready()
        self.schedule_tick()

    def look_for_due(self) -> None:
        """What came due while nothing might be changed is done now, if it may be."""
        self.watch_limits()
        self.schedule_tick()

    def on_timer(self) -> None:
        """Do what is due."""
        self.timer = None
        self.timer_ms = NEVER
        self.serving.timer_stale = True
        self.watch_limits()
        for action in self.ticker.due(self.context.steady_ms, DUE_MAX):
            try:
                action()
            except Exception:
                LOGGER.exception("what was due now failed")
        self.statistics.expired_in_time += self.keyspace.expire_due(EXPIRED_MAX)
        self.keep_policies()
        if self.keyspace.ready:
            self.serving.serve_ready()
        self.schedule_tick()

    def key_expired(self, int db_index, bytes key) -> None:
        """A key went by its time: for the journal a deletion like any other."""
        self.effects.record(db_index, b"DEL", key)
        self.context.notify(b"expired", key, db_index)

    def moment_due(self, int db_index, bytes key, bytes name) -> None:
        """A moment noted for a group (expire, end, or wake a reader) or, without a name, for the
        leases of a stream has come."""
        self.context.session = None
        self.context.db = <Database>self.keyspace.databases[db_index]
        if name is None:
            lease_moment(self.context, key)
        else:
            group_moment(self.context, key, name)

    cdef int keep_policies(self) except -1:
        """Trim streams with entries that have become too old; what is more than a turn's work is due
        again in the next one."""
        cdef int64_t left = TRIMMED_MAX
        if not self.keyspace.may_delete:
            return 0
        self.context.session = None
        while left > 0:
            place = self.keyspace.calendar.take(self.context.now_ms)
            if place is None:
                break
            db_index, key = place
            self.context.db = <Database>self.keyspace.databases[db_index]
            try:
                left -= 1 + policy_moment(self.context, key)
            except Exception:
                LOGGER.exception("the policy of a stream could not be kept")
        return 0

    # ------------------------------------------------------------ memory

    def limit_memory(self, eviction) -> None:
        """Keep within what server/monitor/eviction says; its limit may have changed."""
        self.eviction = eviction
        self.memory_limit = eviction.limit_bytes
        self.look_for_room()

    def look_for_room(self) -> None:
        """A turn's work to bring used memory within its limit, and another while there is
        more: without a request, or after a client's request that could not do all of it."""
        self.room_scheduled = False
        if self.eviction is None or self._loading:
            return
        self.watch_limits()
        self.make_room()
        self.schedule_tick()

    cdef int make_room(self) except -1:
        self.memory_full = self.eviction.make_room()
        self.set_guard()
        if self.eviction.goes_on and not self.room_scheduled:
            self.room_scheduled = True
            self.loop.call_soon(self.look_for_room)
        return 0

    # ------------------------------------------------------------ figures

    @property
    def blocked_count(self) -> int:
        put_off = 0 if self.pause is None else len(self.pause.clients)
        return self.serving.waiting.count + put_off + len(self.backpressure.clients)

    @property
    def timed_count(self) -> int:
        """Blocked clients whose wait ends at a certain moment."""
        return self.serving.waiting.timed_count

    @property
    def blocking_keys(self) -> int:
        return sum(1 for _ in self.serving.waiting.keys())

    @property
    def waiting(self):
        return self.serving.waiting

    @property
    def commands_processed(self) -> int:
        return self.statistics.commands

    @property
    def error_replies(self) -> int:
        return self.statistics.error_replies

    @property
    def errors_by_code(self) -> dict:
        return self.statistics.errors_by_code

    @property
    def bytes_out(self) -> int:
        return self.outbox.bytes_out

    @property
    def reads(self) -> int:
        """How often bytes were read from a client."""
        return self.statistics.reads

    @property
    def writes(self) -> int:
        """How often bytes were written to a client."""
        return self.outbox.writes

    @property
    def expired_in_time(self) -> int:
        """Keys that were deleted when their time came, not by a look-up."""
        return self.statistics.expired_in_time

    def set_slow(self, int64_t slow_us, uint64_t latency_ms) -> None:
        """Commands that take slow_us or longer are noted in the slow log (negative: none), those
        that take latency_ms or longer by the latency monitor (0: none)."""
        self.statistics.set_slow(slow_us, latency_ms)

    def latency_counts(self) -> dict:
        """By command, how many calls took up to 1, 2, 4 ... microseconds."""
        return self.table.latencies()

    def command_stats(self) -> dict:
        """CallStat by name, of commands that were called or refused."""
        return self.table.stats()

    def reset_stats(self) -> None:
        """Forget all statistics (CONFIG RESETSTAT)."""
        self.table.reset()
        if self.running and self.row is not None:
            self.row.calls = 1  # the one that asks for it, as in Redis
        self.statistics.reset()
        self.bytes_in = 0
        self.outbox.bytes_out = self.outbox.writes = 0


cdef int64_t effects_most(Args args) noexcept:
    """The maximum size of a request's effects, where its words show it. Commands that may record
    much more (reads of groups, XAUTOCLAIM, dropped references) check this themselves."""
    cdef int64_t most = REQUEST_EFFECTS_BYTES + WORD_BYTES * args.count
    cdef Py_ssize_t i
    for i in range(args.count):
        most += args.items[i].size
        if 1 <= i <= 3:  # key, group and consumer, or a value
            most += KEY_REPEATS * min(args.items[i].size, <Py_ssize_t>NAME_BYTES)
    return most
