# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The one place where a command runs: look it up, check it, call its handler, record, reply.

A batch is what one client sent at once; a tick is all that happens in one turn of the event loop.
Within a batch each request runs to its end: the handler returns a value, which is encoded behind
the replies before it, or a Wait, which parks the client. Readers that a command made ready are
served right behind that command, never inside it. At the end of the tick the effects of all batches
become one journal frame, and then each client gets one write; while the journal has not yet made
durable what was executed, everything a client would see, reads included, is held back in order.

Clients are abstract here (bytes in, `transmit` out), so a test runs the same code without sockets;
time and timers come from the server object.
"""

from libc.stdint cimport uint64_t

from collections import deque
from functools import partial
import logging

from millstream.commands.arguments cimport Args, OwnedArgs
from millstream.commands.context cimport Context, Session
from millstream.commands.effects cimport Effects
from millstream.commands.replies cimport Encodable, Wait
from millstream.encoding cimport Output
from millstream.ids cimport Id
from millstream.server.clock cimport monotonic_ns, wall_ms
from millstream.server.lookup cimport Row, Table, unknown_command
from millstream.server.outbox cimport OUTPUT_MAX, Client, Outbox
from millstream.server.resp cimport (
    COMPLETE, INLINE, NEED_MORE, Limits, Parser, put_error, put_reply,
)
from millstream.storage.keyspace cimport Database

from millstream.commands.delivery import group_moment
from millstream.errors import CommandError, wrong_arity
from millstream.server.clock import wall_clock_ms
from millstream.server.ticker import Ticker
from millstream.server.waiting import Waiting

LOGGER = logging.getLogger("millstream")

cdef enum:
    RESUMED_MAX = 1000
    DUE_MAX = 1000
    # One client's requests run for this long, looked at every so many of them; then it is others'
    # turn.
    BATCH_NS = 2000000
    BATCH_LOOK = 16

cdef uint64_t NEVER = 0xffffffffffffffffULL

INTERNAL = "ERR internal error, see the server's log"
NOAUTH = "NOAUTH Authentication required."


cdef class Executor:
    """Runs the commands of all clients of one server.

    `server` gives keyspace, persistence, loop (call_soon, call_later), now_ms() and, to the
    commands, what commands/outside.py names.
    """

    def __init__(self, server):
        self.server = server
        self.keyspace = server.keyspace
        self.persistence = server.persistence
        self.loop = server.loop
        # None: the machine's clock, read without a call through Python.
        self.clock = None if server.now_ms is wall_clock_ms else server.now_ms
        self.effects = Effects()
        self.context = Context(self.keyspace, self.effects, server)
        self.limits = Limits()
        self.waiting = Waiting(self.keyspace.databases)
        self.ticker = Ticker()
        self.out = Output()
        self.side = Output()
        self.table = Table()
        self.outbox = Outbox(self.persistence, self.loop, self.resume)
        self.resumable = deque()
        self.timer_ms = NEVER
        self.errors_by_code = {}

    def attach(self, Client client not None) -> None:
        """Take a new client in."""
        client.parser = Parser(self.limits)
        client.chunks = []

    cdef uint64_t read_clock(self) except? 0:
        return wall_ms() if self.clock is None else self.clock()

    cdef uint64_t read_stopwatch(self) except? 0:
        """Nanoseconds, for durations."""
        return monotonic_ns() if self.clock is None else <uint64_t>self.clock() * 1000000

    # ------------------------------------------------------------ requests

    cdef int receive(self, Client client, bytes data) except -1:
        """A client sent bytes: run what can run, keep the rest."""
        self.bytes_in += len(data)
        client.parser.feed(data, len(data))
        if client.stopped():
            client.parser.keep_rest()
            if client.parser.waiting_bytes() > self.limits.query_bytes:
                LOGGER.warning("closing client %s: unread requests of more than "
                               "client-query-buffer-limit", client.address)
                client.end(False)
            return 0
        self.run_batch(client)
        if self.tick_scheduled:
            return 0
        if self.effects.out.size:
            # Others may still have something to say in this turn: one frame for all of it.
            self.schedule_tick()
        else:
            self.end_tick()
        return 0

    def feed(self, Client client not None, bytes data not None) -> None:
        """`receive` for tests and other transports."""
        self.receive(client, data)

    cdef int look_around(self) except -1:
        """Read the clock, and whether anything may be changed now."""
        self.context.now_ms = self.read_clock()
        problem = self.persistence.writable_error()
        self.context.write_error = None if problem is None else problem.decode()
        return 0

    cdef int run_batch(self, Client client) except -1:
        """Run the client's requests until none is complete or it has to stop.

        A tick's end follows every batch, whether or not there is something to say: it records what
        was done and notes what falls due.
        """
        self.look_around()
        client.last_active_ms = self.context.now_ms
        self.row = None
        self.timed = None
        while True:
            try:
                self.run_requests(client)
                break
            except CommandError as error:
                self.refuse(error.message)
            except MemoryError as error:
                LOGGER.error("a command ran out of memory: %s", error)
                self.out.size = self.reply_start
                self.refuse("OOM " + (str(error) or "out of memory"))
            except Exception:
                self.out.size = self.reply_start
                # A fault of ours: this one command fails, the server goes on and says where.
                LOGGER.exception("command %s failed", self.row.name if self.row else "?")
                self.refuse(INTERNAL)
        self.count_time(None)
        if self.keyspace.ready:
            self.serve_ready()
        client.parser.keep_rest()
        if self.out.size:
            self.outbox.put(client, self.out.take())
        elif client.close_after_reply:
            self.outbox.put(client, None)
        return 0

    cdef int run_requests(self, Client client) except -1:
        cdef int state
        cdef int left = BATCH_LOOK
        cdef uint64_t end_ns = self.read_stopwatch() + BATCH_NS
        while not client.stopped():
            left -= 1
            if left == 0:
                if self.read_stopwatch() > end_ns:
                    self.resume(client)
                    return 0
                left = BATCH_LOOK
            self.reply_start = self.out.size
            self.running = False
            state = client.parser.next(client.authenticated)
            if state == COMPLETE:
                self.execute(client, client.parser.args)
            elif state == INLINE:
                self.execute(client, OwnedArgs(client.parser.inline_words))
            elif state == NEED_MORE:
                return 0
            else:
                return self.break_off(client)
            if self.keyspace.ready:
                self.serve_ready()
            if self.out.size > OUTPUT_MAX:
                client.full = True
        return 0

    cdef int break_off(self, Client client) except -1:
        """The byte stream is broken: say so and close this connection alone."""
        client.close_after_reply = True
        if client.parser.error:
            message = client.parser.error.decode("latin-1")
            LOGGER.debug("closing client %s: %s", client.address, message)
            self.refuse("ERR " + message)
        else:
            LOGGER.warning("closing client %s: a request of more than client-query-buffer-limit",
                           client.address)
        return 0

    cdef int execute(self, Client client, Args args) except -1:
        cdef Context context = self.context
        cdef Row row = self.table.find(args, self.timed)
        self.row = row
        if row is None:
            return self.stranger(client, args)
        if args.count != row.arity and (row.arity > 0 or args.count < -row.arity):
            row.rejected += 1
            raise wrong_arity(row.name)
        if self.password_required and not client.authenticated and not row.open_to_all:
            row.rejected += 1
            raise CommandError(NOAUTH)
        if row.writes and context.write_error is not None:
            row.rejected += 1
            raise CommandError(context.write_error)
        if row is not self.timed:
            self.count_time(row)
        row.calls += 1
        self.running = True
        self.commands_processed += 1
        client.last_command = row.name
        context.session = client
        context.db = <Database>self.keyspace.databases[client.db_index]
        reply = row.handler(context, args)
        if type(reply) is Id or type(reply) is int:
            return put_reply(self.out, reply, client.resp)
        return self.put_slow(client, reply)

    cdef int stranger(self, Client client, Args args) except -1:
        """No command of ours. A web page can make a browser send requests here; the first lines of
        HTTP end such a connection, as in Redis, before its body can do harm."""
        if args[0].lower() in (b"post", b"host:"):
            LOGGER.warning("closing client %s: it speaks HTTP, perhaps a web page that attacks this "
                           "server through a browser", client.address)
            client.end(False)
            return 0
        raise CommandError(unknown_command(args))

    cdef int put_slow(self, Client client, reply) except -1:
        """Replies other than an id or an integer: a Wait parks the client, and one too long to make
        at once leaves the rest to be sent in slices."""
        if type(reply) is Wait:
            client.waiter = self.waiting.add(client, reply)
            client.blocked = True
            if (<Wait>reply).deadline_ms:
                client.waiter.alarm = self.ticker.at(
                    (<Wait>reply).deadline_ms, partial(self.time_out, client.waiter))
                self.timer_stale = True
            return 0
        put_reply(self.out, reply, client.resp)
        if isinstance(reply, Encodable):
            client.producer = (<Encodable>reply).rest()
        return 0

    cdef inline int count_time(self, Row row) except -1:
        """Time is read when the kind of command changes: equal commands in a row share it."""
        cdef uint64_t now = self.read_stopwatch()
        if self.timed is not None:
            self.timed.nanoseconds += now - self.timed_since
        self.timed = row
        self.timed_since = now
        return 0

    cdef int refuse(self, str message) except -1:
        """Reply an error and count it by its code."""
        code = message.split(" ", 1)[0]
        self.error_replies += 1
        if code in self.errors_by_code or len(self.errors_by_code) < 128:
            self.errors_by_code[code] = self.errors_by_code.get(code, 0) + 1
        if self.running:
            self.row.failed += 1
        return put_error(self.out, message)

    # ------------------------------------------------------------ waiting

    cdef int serve_ready(self) except -1:
        """Try the waiting reads of every key marked ready, until nothing is marked any more."""
        while self.keyspace.ready:
            marked = dict.fromkeys(self.keyspace.ready)
            self.keyspace.ready = []
            self.context.shared = {}
            self.context.remade = set()
            try:
                for db_index, key in marked:
                    self.waiting.serve(db_index, key, self.attempt)
            finally:
                self.context.shared = self.context.remade = None
        return 0

    def attempt(self, waiter) -> bool:
        """Try a waiting read again; True when its client was served."""
        cdef Context context = self.context
        cdef Client client = waiter.client
        cdef Session running = context.session
        cdef Database running_db = context.db
        context.session = client
        context.db = <Database>self.keyspace.databases[client.db_index]
        try:
            reply = waiter.read.attempt(context)
            if reply is None:
                return False
            self.unblock(waiter, reply)
        except CommandError as error:
            self.unblock(waiter, error)
        except Exception:
            # A fault of ours ends this one wait, not the command that woke it.
            LOGGER.exception("a waiting read failed")
            self.side.clear()
            self.unblock(waiter, CommandError(INTERNAL))
        finally:
            context.session = running
            context.db = running_db
        return True

    def time_out(self, waiter) -> None:
        """A wait's time is over."""
        cdef Client client = waiter.client
        if waiter.over:
            return
        self.context.session = client
        self.context.db = <Database>self.keyspace.databases[client.db_index]
        self.unblock(waiter, waiter.read.timeout_reply(self.context))

    cdef int unblock(self, object waiter, reply) except -1:
        """End a wait with this reply (or CommandError)."""
        cdef Client client = waiter.client
        self.end_wait(waiter)
        if isinstance(reply, CommandError):
            self.error_replies += 1
            put_error(self.side, reply.message)
        else:
            put_reply(self.side, reply, client.resp)
            if isinstance(reply, Encodable):
                client.producer = (<Encodable>reply).rest()
        self.outbox.put(client, self.side.take())
        self.resumable.append(client)
        return 0

    cdef int end_wait(self, object waiter) except -1:
        """A wait is over: out of every queue, its alarm off."""
        cdef Client client = waiter.client
        self.waiting.remove(waiter)
        if waiter.alarm is not None:
            self.ticker.cancel(waiter.alarm)
        client.blocked = False
        client.waiter = None
        waiter.read.ended(self.context)
        return 0

    def detach(self, Client client not None) -> None:
        """A client is gone: forget its wait and what it would have got."""
        client.closed = True
        if client.waiter is not None:
            waiter = client.waiter
            self.context.session = client
            self.context.db = <Database>self.keyspace.databases[client.db_index]
            self.context.now_ms = self.read_clock()
            self.end_wait(waiter)
            self.schedule_tick()
        client.producer = None
        client.chunks = []

    # ------------------------------------------------------------ ticks

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
        self.tick_scheduled = False
        # Only those that may run now: a client that comes back meanwhile has its turn behind the
        # other sockets.
        while self.resumable and resumed < RESUMED_MAX and resumed < waiting:
            client = self.resumable.popleft()
            resumed += 1
            if not client.stopped():
                self.run_batch(client)
        if self.resumable:
            self.schedule_tick()
        if self.keyspace.agenda:
            for moment, db_index, key, name in self.keyspace.agenda:
                self.ticker.at(moment, partial(self.group_due, db_index, key, name))
            self.keyspace.agenda = []
            self.timer_stale = True
        if self.effects.out.size:
            self.persistence.commit(self.effects.take())
        if self.outbox.dirty_clients:
            self.outbox.send()
        if self.timer_stale:
            self.set_timer()

    def resume(self, Client client not None) -> None:
        """Run what a client sent while it had to stop, at the end of this tick."""
        self.resumable.append(client)
        self.schedule_tick()

    # ------------------------------------------------------------ time

    cdef int set_timer(self) except -1:
        """Keep one timer, to the earliest moment that the ticker knows."""
        self.timer_stale = False
        next_ms = self.ticker.next_ms
        if next_ms is None or <uint64_t>next_ms >= self.timer_ms:
            return 0
        if self.timer is not None:
            self.timer.cancel()
        self.timer_ms = next_ms
        now_ms = self.read_clock()
        self.timer = self.loop.call_later(max(0, next_ms - now_ms) / 1000, self.on_timer)
        return 0

    def on_timer(self) -> None:
        """Do what is due."""
        self.timer = None
        self.timer_ms = NEVER
        self.timer_stale = True
        self.look_around()
        for action in self.ticker.due(self.context.now_ms, DUE_MAX):
            try:
                action()
            except Exception:
                LOGGER.exception("what was due now failed")
        if self.keyspace.ready:
            self.serve_ready()
        self.schedule_tick()

    def group_due(self, int db_index, bytes key, bytes name) -> None:
        """A moment noted for a group has come: expire, end, or wake a reader."""
        self.context.session = None
        self.context.db = <Database>self.keyspace.databases[db_index]
        group_moment(self.context, key, name)

    # ------------------------------------------------------------ figures

    @property
    def blocked_count(self) -> int:
        return self.waiting.count

    @property
    def blocking_keys(self) -> int:
        return sum(1 for _ in self.waiting.keys())

    @property
    def bytes_out(self) -> int:
        return self.outbox.bytes_out

    def command_stats(self) -> dict:
        """CallStat by name, of commands that were called or refused."""
        return self.table.stats()

    def reset_stats(self) -> None:
        """Forget all statistics (CONFIG RESETSTAT)."""
        self.table.reset()
        self.errors_by_code = {}
        self.commands_processed = 0
        self.error_replies = 0
        self.bytes_in = 0
        self.outbox.bytes_out = 0
