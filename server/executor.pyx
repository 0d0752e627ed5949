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

from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from collections import deque
from functools import partial
import logging

from millstream.commands.arguments cimport Args, OwnedArgs, same_word
from millstream.commands.context cimport Context, Session
from millstream.commands.effects cimport Effects
from millstream.commands.replies cimport Encodable, Wait
from millstream.encoding cimport Output, Slice
from millstream.ids cimport Id
from millstream.server.clock cimport monotonic_ns, wall_ms
from millstream.server.resp cimport (
    BROKEN, COMPLETE, INLINE, NEED_MORE, Limits, Parser, put_error, put_reply,
)
from millstream.storage.keyspace cimport Database, Keyspace

from millstream.commands.registry import COMMANDS
from millstream.commands.delivery import group_moment
from millstream.errors import CommandError, wrong_arity
from millstream.server.clock import wall_clock_ms
from millstream.server.ticker import Ticker
from millstream.server.waiting import Waiting

LOGGER = logging.getLogger("millstream")

cdef enum:
    # A client whose replies of one tick reach this stops being read until they are on their way.
    OUTPUT_MAX = 1048576
    # Unread requests of a client that may not run yet: beyond this its socket is not read.
    BACKLOG_MAX = 262144
    RESUMED_MAX = 1000
    DUE_MAX = 1000

cdef uint64_t NEVER = 0xffffffffffffffffULL

NOAUTH = "NOAUTH Authentication required."
UNKNOWN_ARGS_BYTES = 128


cdef inline uint64_t word_at(const char* at, Py_ssize_t size) noexcept nogil:
    """Up to eight bytes as one number, letters in lower case."""
    cdef uint32_t low
    cdef uint32_t high
    cdef uint64_t whole
    if size >= 8:
        memcpy(&whole, at, 8)
    elif size >= 4:
        memcpy(&low, at, 4)
        memcpy(&high, at + size - 4, 4)
        whole = low | (<uint64_t>high << 32)
    else:
        whole = 0
        memcpy(&whole, at, size)
    return whole | 0x2020202020202020ULL


cdef inline uint32_t name_place(uint64_t front, uint64_t back, Py_ssize_t size,
                                uint32_t mask) noexcept nogil:
    """Where to look for a name: its first eight and its last eight bytes, mixed."""
    cdef uint64_t mixed = (front ^ (back * 31) ^ <uint64_t>size) * 0x9e3779b97f4a7c15ULL
    return <uint32_t>(mixed >> 40) & mask


class CallStat:
    """What INFO commandstats says of one command."""

    __slots__ = ("calls", "failed_calls", "rejected_calls", "usec")

    def __init__(self, calls, usec, rejected_calls, failed_calls):
        self.calls = calls
        self.usec = usec
        self.rejected_calls = rejected_calls
        self.failed_calls = failed_calls


cdef class Client(Session):
    """A client as the executor needs it. `transmit` and `end` belong to the transport, which sets
    `paused` while the client does not take what it was sent. A client is `full` when it has so much
    to take, or to be released by the journal, that its requests wait."""

    cpdef int transmit(self, bytes data) except -1:
        """Send these bytes behind all before."""
        raise NotImplementedError

    cpdef int end(self, bint after_reply) except -1:
        """Close the connection, at once or when everything transmitted has been sent."""
        raise NotImplementedError

    cdef bint stopped(self) noexcept:
        """Whether no further request of this client may run now."""
        return (self.blocked or self.full or self.closed or self.close_after_reply
                or self.producer is not None)

    def is_stopped(self) -> bool:
        return self.stopped()

    @property
    def query_buffer_bytes(self) -> int:
        return 0 if self.parser is None else self.parser.waiting_bytes()

    @property
    def argv_bytes(self) -> int:
        return 0

    @property
    def output_bytes(self) -> int:
        return self.held_bytes


cdef class Row:
    """A command of the table with what execution needs at hand, and its statistics."""

    def __init__(self, command):
        self.command = command
        self.handler = command.handler
        self.name = command.name
        self.upper = command.name.upper().encode()
        self.size = len(self.upper)
        self.front = word_at(self.upper, self.size)
        self.back = word_at(<const char*>self.upper + self.size - 8, 8) if self.size > 8 else 0
        self.arity = command.arity
        self.writes = "write" in command.flags
        self.open_to_all = "no_auth" in command.flags
        self.subcommands = {name: Row(sub) for name, sub in command.subcommands.items()}


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
        self.dirty_clients = []
        self.resumable = []
        self.held = deque()
        self.timer_ms = NEVER
        self.errors_by_code = {}
        self.fill_table()

    def fill_table(self) -> None:
        """Take the command table in: a small open hash by name."""
        cdef Row row
        cdef uint32_t place
        self.rows = {name: Row(command) for name, command in COMMANDS.items()}
        size = 256
        while size < 4 * len(self.rows):
            size *= 2
        self.mask = size - 1
        self.slots = [None] * size
        for row in self.rows.values():
            place = name_place(row.front, row.back, row.size, self.mask)
            while self.slots[place] is not None:
                place = (place + 1) & self.mask
            self.slots[place] = row

    def attach(self, Client client not None) -> None:
        """Take a new client in."""
        client.parser = Parser(self.limits)
        client.chunks = []

    cdef uint64_t read_clock(self) except? 0:
        return wall_ms() if self.clock is None else self.clock()

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
        """Run the client's requests until none is complete or it has to stop."""
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
                self.refuse("ERR internal error, see the server's log")
        self.count_time(None)
        if self.keyspace.ready:
            self.serve_ready()
        client.parser.keep_rest()
        if self.out.size:
            self.touch(client, self.out.take())
        elif client.close_after_reply:
            self.touch(client, None)
        elif self.effects.out.size or self.keyspace.agenda:
            # Nothing to say, but something to record or to wake up for: a group read that blocks.
            self.schedule_tick()
        return 0

    cdef int run_requests(self, Client client) except -1:
        cdef int state
        while not client.stopped():
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
            self.row = None
            self.refuse("ERR " + message)
        return 0

    cdef int execute(self, Client client, Args args) except -1:
        cdef Context context = self.context
        cdef Row row = self.find(args)
        self.row = row
        self.reply_start = self.out.size
        if row is None:
            raise CommandError(unknown_command(args))
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
        self.commands_processed += 1
        client.last_command = row.name
        context.session = client
        context.db = <Database>self.keyspace.databases[client.db_index]
        reply = row.handler(context, args)
        if type(reply) is Id or type(reply) is int:
            return put_reply(self.out, reply, client.resp)
        return self.put_slow(client, reply)

    cdef int put_slow(self, Client client, reply) except -1:
        """Replies other than an id or an integer: a Wait parks the client, and one too long to make
        at once leaves the rest to be sent in slices."""
        if type(reply) is Wait:
            client.waiter = self.waiting.add(client, reply)
            client.blocked = True
            if (<Wait>reply).deadline_ms:
                self.ticker.at((<Wait>reply).deadline_ms, partial(self.time_out, client.waiter))
            # Nothing is sent, but what the read did or noted for later is taken up by the tick.
            return self.schedule_tick()
        put_reply(self.out, reply, client.resp)
        if isinstance(reply, Encodable):
            client.producer = (<Encodable>reply).rest()
        return 0

    cdef Row find(self, Args args):
        """The table's row for a request, its subcommand's where there is one; None if unknown."""
        cdef Slice* name = &args.items[0]
        cdef uint64_t front = word_at(name.ptr, name.size)
        cdef uint64_t back = word_at(name.ptr + name.size - 8, 8) if name.size > 8 else 0
        cdef uint32_t place = name_place(front, back, name.size, self.mask)
        cdef Row row = self.timed
        # The command before was mostly the same one.
        if row is None or row.front != front or row.size != name.size or row.back != back:
            while True:
                row = <Row>self.slots[place]
                if row is None:
                    return None
                if row.front == front and row.size == name.size and row.back == back:
                    break
                place = (place + 1) & self.mask
        if not same_word(name, row.upper, row.size):
            return None
        if row.subcommands and args.count > 1:
            subcommand = row.subcommands.get(args[1].lower())
            if subcommand is not None:
                args.pos = 2
                return subcommand
        return row

    cdef inline void count_time(self, Row row) noexcept:
        """Time is read when the kind of command changes: equal commands in a row share it."""
        cdef uint64_t now = monotonic_ns()
        if self.timed is not None:
            self.timed.nanoseconds += now - self.timed_since
        self.timed = row
        self.timed_since = now

    cdef int refuse(self, str message) except -1:
        """Reply an error and count it by its code."""
        code = message.split(" ", 1)[0]
        self.error_replies += 1
        if code in self.errors_by_code or len(self.errors_by_code) < 128:
            self.errors_by_code[code] = self.errors_by_code.get(code, 0) + 1
        if self.row is not None:
            self.row.failed += 1
        return put_error(self.out, message)

    # ------------------------------------------------------------ waiting

    cdef int serve_ready(self) except -1:
        """Try the waiting reads of every key marked ready, until nothing is marked any more."""
        while self.keyspace.ready:
            marked = dict.fromkeys(self.keyspace.ready)
            self.keyspace.ready = []
            self.context.shared = {}
            for db_index, key in marked:
                self.waiting.serve(db_index, key, self.attempt)
        self.context.shared = None
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
        self.waiting.remove(waiter)
        client.blocked = False
        client.waiter = None
        waiter.read.ended(self.context)
        if isinstance(reply, CommandError):
            self.error_replies += 1
            put_error(self.side, reply.message)
        else:
            put_reply(self.side, reply, client.resp)
            if isinstance(reply, Encodable):
                client.producer = (<Encodable>reply).rest()
        self.touch(client, self.side.take())
        self.resumable.append(client)
        return 0

    def unblock_with(self, Client client not None, reply) -> bool:
        """End a client's wait from outside (CLIENT UNBLOCK); False when it is not waiting."""
        if client.waiter is None:
            return False
        self.unblock(client.waiter, reply)
        self.schedule_tick()
        return True

    def detach(self, Client client not None) -> None:
        """A client is gone: forget its wait and what it would have got."""
        client.closed = True
        if client.waiter is not None:
            waiter = client.waiter
            self.waiting.remove(waiter)
            client.waiter = None
            client.blocked = False
            self.context.session = client
            self.context.db = <Database>self.keyspace.databases[client.db_index]
            self.context.now_ms = self.read_clock()
            waiter.read.ended(self.context)
            self.schedule_tick()
        client.producer = None
        client.chunks = []

    # ------------------------------------------------------------ ticks

    cdef int touch(self, Client client, bytes data) except -1:
        """Note bytes for a client, to be sent at the end of the tick."""
        if data is not None:
            client.chunks.append(data)
        if not client.dirty:
            client.dirty = True
            self.dirty_clients.append(client)
        return 0

    cdef int schedule_tick(self) except -1:
        if not self.tick_scheduled:
            self.tick_scheduled = True
            self.loop.call_soon(self.end_tick)
        return 0

    def end_tick(self) -> None:
        """All that was ready has run: go on with clients that may run again, commit, send."""
        cdef Client client
        cdef int resumed = 0
        self.tick_scheduled = False
        while self.resumable and resumed < RESUMED_MAX:
            resuming = self.resumable
            self.resumable = []
            for client in resuming:
                resumed += 1
                if not client.stopped():
                    self.run_batch(client)
        if self.resumable:
            self.schedule_tick()
        if self.keyspace.agenda:
            for moment, db_index, key, name in self.keyspace.agenda:
                self.ticker.at(moment, partial(self.group_due, db_index, key, name))
            self.keyspace.agenda = []
        if self.effects.out.size:
            self.persistence.commit(self.effects.take())
        if self.dirty_clients:
            self.send_tick()
        self.set_timer()

    cdef int send_tick(self) except -1:
        cdef Client client
        cdef bytes data
        cdef list clients = self.dirty_clients
        cdef object last = self.persistence.last_seq
        cdef bint hold = self.persistence.durable_seq < last
        self.dirty_clients = []
        for client in clients:
            client.dirty = False
            if client.closed:
                continue
            data = client.chunks[0] if len(client.chunks) == 1 else b"".join(client.chunks)
            client.chunks.clear()
            if hold:
                client.held_bytes += len(data)
                client.full = client.full or client.held_bytes > OUTPUT_MAX
                self.held.append((last, client, data))
            else:
                self.release(client, data)
        return 0

    cdef int release(self, Client client, bytes data) except -1:
        """Everything executed before these bytes is durable: let them go."""
        if client.closed:
            return 0
        if data:
            self.bytes_out += len(data)
            client.transmit(data)
            client.full = client.full or client.paused
        if client.close_after_reply:
            client.end(True)
        elif client.producer is not None:
            self.pump(client)
        elif client.full:
            self.room(client)
        return 0

    def durable(self, sequence) -> None:
        """The journal has made everything up to this sequence number durable."""
        cdef Client client
        while self.held and self.held[0][0] <= sequence:
            _, client, data = self.held.popleft()
            client.held_bytes -= len(data)
            self.release(client, data)

    def journal_failed(self) -> None:
        """What waits for the journal has an unknown outcome: those connections are closed."""
        cdef Client client
        while self.held:
            _, client, data = self.held.popleft()
            client.held_bytes -= len(data)
            client.end(False)

    def room(self, Client client not None) -> None:
        """The client has taken what it was sent: go on with a long reply or its next requests."""
        if client.closed:
            return
        if client.producer is not None:
            self.pump(client)
        elif client.full and not client.held_bytes and not client.paused:
            client.full = False
            self.resume(client)

    def pump(self, Client client not None) -> None:
        """Send the next slice of a long reply; one a turn, so that others get theirs."""
        if client.closed or client.producer is None or client.paused:
            return
        if client.dirty or client.held_bytes:
            return  # its first slice is still to come; that one's release begins anew
        data = client.producer.next_slice()
        if data:
            self.bytes_out += len(data)
            client.transmit(data)
            self.loop.call_soon(self.pump, client)
            return
        client.producer = None
        if client.full:
            self.room(client)
        else:
            self.resume(client)

    def resume(self, Client client not None) -> None:
        """Run what a client sent while it had to stop, at the end of this tick."""
        self.resumable.append(client)
        self.schedule_tick()

    # ------------------------------------------------------------ time

    cdef int set_timer(self) except -1:
        """Keep one timer, to the earliest moment that the ticker knows."""
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
        self.look_around()
        for action in self.ticker.due(self.context.now_ms, DUE_MAX):
            action()
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

    def command_stats(self) -> dict:
        """CallStat by name, of commands that were called or refused."""
        cdef Row row
        found = {}
        todo = list(self.rows.values())
        while todo:
            row = todo.pop()
            todo += row.subcommands.values()
            if row.calls or row.rejected or row.failed:
                found[row.name] = CallStat(
                    row.calls, row.nanoseconds // 1000, row.rejected, row.failed)
        return found

    def reset_stats(self) -> None:
        """Forget all statistics (CONFIG RESETSTAT)."""
        cdef Row row
        todo = list(self.rows.values())
        while todo:
            row = todo.pop()
            todo += row.subcommands.values()
            row.calls = row.nanoseconds = row.rejected = row.failed = 0
        self.errors_by_code = {}
        self.commands_processed = 0
        self.error_replies = 0
        self.bytes_in = 0
        self.bytes_out = 0


cdef str unknown_command(Args args):
    """Redis' words: the name and the first arguments, each cut at 128 bytes together."""
    quoted = ""
    for word in args.all()[1:]:
        if len(quoted) >= UNKNOWN_ARGS_BYTES:
            break
        text = word[:UNKNOWN_ARGS_BYTES - len(quoted)].decode("utf-8", "surrogateescape")
        quoted += f"'{text}' "
    name = args[0][:UNKNOWN_ARGS_BYTES].decode("utf-8", "surrogateescape")
    return f"ERR unknown command '{name}', with args beginning with: {quoted}"
