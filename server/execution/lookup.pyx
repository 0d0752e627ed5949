# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Finding a request's command in the table; counting and timing commands.

The registry's rows are in a small open hash table. A name is identified by its first and its last
eight bytes, as two numbers with the letters in lower case.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from millstream.commands.access.permission cimport Demand
from millstream.commands.runtime.arguments cimport Args, is_word
from millstream.encoding cimport Slice
from millstream.server.clock cimport monotonic_ns
from millstream.server.protocol.outbox cimport Client

from millstream.commands.table.containers import unknown_subcommand
from millstream.commands.table.keyspecs import has_option
from millstream.commands.table.registry import COMMANDS

UNKNOWN_ARGS_BYTES = 128

cdef enum:
    # Below this threshold in nanoseconds every command is timed individually for the slow log.
    EXACT_BELOW_NS = 1000000
    # Limits the memory that a client could fill with new kinds of errors.
    CODES_MAX = 128
    WORDS_WITHOUT_ENTRY = 4  # TAPPEV key COUNT n


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
    """The first slot to search for a name: a hash of its first eight and its last eight bytes."""
    cdef uint64_t mixed = (front ^ (back * 31) ^ <uint64_t>size) * 0x9e3779b97f4a7c15ULL
    return <uint32_t>(mixed >> 40) & mask


class CallStat:
    """The figures of INFO commandstats for one command."""

    __slots__ = ("calls", "failed_calls", "rejected_calls", "usec")

    def __init__(self, calls, usec, rejected_calls, failed_calls):
        self.calls = calls
        self.usec = usec
        self.rejected_calls = rejected_calls
        self.failed_calls = failed_calls


cdef class Row:
    """A command of the table in the form that execution needs, and its statistics."""

    def __init__(self, command, Row container=None):
        self.command = command
        self.container = container
        self.demand = Demand(command)
        self.handler = command.handler
        self.name = command.name
        self.upper = command.name.upper().encode()
        self.size = len(self.upper)
        self.front = word_at(self.upper, self.size)
        self.back = word_at(<const char*>self.upper + self.size - 8, 8) if self.size > 8 else 0
        self.arity = command.arity
        self.writes = "write" in command.flags
        self.tells = "tells" in command.traits
        self.open_to_all = "no_auth" in command.flags
        self.while_loading = "loading" in command.flags
        self.while_stale = "stale" in command.flags
        self.needs_memory = "denyoom" in command.flags
        self.subcommands = {
            name: Row(sub, self)
            for name, sub in [*command.subcommands.items(), *command.unlisted.items()]
        }
        self.top = "|" not in command.name
        self.last_word = self.upper.rpartition(b"|")[2]
        self.fast = "fast" in command.flags
        self.hot = "hot" in command.traits
        self.writes_with = command.writes_with
        self.queued = "unqueued" not in command.traits
        self.refused_in_multi = "no_multi" in command.flags
        self.when_subscribed = "subscribed" in command.traits
        # Redis shows commands with skip_monitor (scripts) in another way, before the commands that
        # they run.
        self.shown_to_monitors = "admin" not in command.flags
        self.logged_when_slow = "skip_slowlog" not in command.flags
        self.shows_data = "dataless" not in command.traits
        self.protected = "protected" in command.traits
        self.audited = "audited" in command.traits
        self.guarded = self.protected or self.audited
        self.removing_words = (
            1 << 62 if "removes" in command.traits
            else WORDS_WITHOUT_ENTRY if "removes_without_entry" in command.traits else 0)
        self.waits_when_full = self.shows_data and "unblocked" not in command.traits

    def will_write(self, Args args not None) -> bool:
        """True if this request may change data: some commands do so only with one of their
        options."""
        return self.writes or (
            self.writes_with is not None and has_option(args.all(), self.writes_with))

    cdef bint only_removes(self, Args args) noexcept:
        """True if this request only removes data, so that it may run on a full disk."""
        return args.count <= self.removing_words

    cdef void add_time(self, uint64_t nanoseconds) noexcept:
        """Add the total time of the calls since the last call of this method. Bucket i counts calls
        of more than 2**(i-1) and at most 2**i microseconds."""
        cdef uint64_t count = self.calls - self.timed_calls
        cdef uint64_t most = 1000
        cdef int bucket = 0
        self.nanoseconds += nanoseconds
        if count == 0:
            return
        self.timed_calls = self.calls
        while most * count < nanoseconds and bucket < BUCKETS - 1:
            most *= 2
            bucket += 1
        self.buckets[bucket] += count


cdef class Table:
    """The rows of all commands."""

    def __init__(self):
        cdef Row row
        cdef uint32_t place
        self.rows = [Row(command) for command in COMMANDS.values()]
        size = 256
        while size < 4 * len(self.rows):
            size *= 2
        self.mask = size - 1
        self.slots = [None] * size
        for row in self.rows:
            place = name_place(row.front, row.back, row.size, self.mask)
            while self.slots[place] is not None:
                place = (place + 1) & self.mask
            self.slots[place] = row

    cdef Row find(self, Args args, Row likely):
        """The row of a request's command or subcommand; None if it is unknown. `likely` is the row
        of the previous request, which usually is the same."""
        cdef Slice* name = &args.items[0]
        cdef uint64_t front = word_at(name.ptr, name.size)
        cdef uint64_t back = word_at(name.ptr + name.size - 8, 8) if name.size > 8 else 0
        cdef uint32_t place = name_place(front, back, name.size, self.mask)
        cdef Row row = likely
        if row is None or not row.top or row.front != front or row.size != name.size or (
                row.back != back):
            while True:
                row = <Row>self.slots[place]
                if row is None:
                    return None
                if row.front == front and row.size == name.size and row.back == back:
                    break
                place = (place + 1) & self.mask
        if not is_word(name, row.upper):
            return None
        if row.subcommands and args.count > 1:
            args.pos = 2
            if likely is not None and likely.container is row and is_word(
                    &args.items[1], likely.last_word):
                return likely
            return row.subcommands.get(args[1].lower())
        return row

    def all_rows(self) -> list:
        """Every row, subcommands too."""
        cdef Row row
        found = list(self.rows)
        for row in self.rows:
            found += row.subcommands.values()
        return found

    def stats(self) -> dict:
        """The CallStat of each command that was called or refused, by name."""
        cdef Row row
        return {
            row.name: CallStat(row.calls, row.nanoseconds // 1000, row.rejected, row.failed)
            for row in self.all_rows()
            if row.calls or row.rejected
        }

    def reset(self) -> None:
        """Forget all statistics."""
        cdef Row row
        for row in self.all_rows():
            row.calls = row.nanoseconds = row.rejected = row.failed = row.timed_calls = 0
            for bucket in range(BUCKETS):
                row.buckets[bucket] = 0

    def latencies(self) -> dict:
        """The number of calls that took up to 1, 2, 4 ... microseconds, by command."""
        cdef Row row
        return {
            row.name: [row.buckets[bucket] for bucket in range(BUCKETS)]
            for row in self.all_rows()
            if row.timed_calls
        }


cdef class Statistics:
    """Counts and times commands, and records slow ones.

    The clock is read when the kind of command changes: consecutive calls of the same hot command
    (Row.hot) share the time between two readings. Other commands are timed individually, and so is
    every command while the threshold of the slow log is below a millisecond.

    `clock` returns milliseconds of a fake clock; None means the machine's clock. `server` has the
    slow log and the latency monitor.
    """

    def __init__(self, server, clock):
        self.server = server
        self.clock = clock
        self.errors_by_code = {}
        self.slow_ns = -1

    cdef uint64_t read(self) except? 0:
        """Nanoseconds, for durations."""
        return monotonic_ns() if self.clock is None else <uint64_t>self.clock() * 1000000

    cdef int begin(self, Row row) except -1:
        """From now on, time counts for this row (None: for no row)."""
        cdef uint64_t now = self.read()
        if self.timed is not None:
            self.timed.add_time(now - self.since)
        self.timed = row
        self.since = now
        return 0

    cdef int finish(self, Row row, Client client, Args args, uint64_t now_ms) except -1:
        """End the timing of a command that is timed individually."""
        cdef uint64_t since = self.since
        cdef uint64_t taken
        self.begin(row)
        taken = self.since - since
        if 0 <= self.slow_ns <= <int64_t>taken and row.logged_when_slow:
            self.server.slowlog.note(now_ms, taken // 1000, args.all(), client)
        if self.latency_ns and taken >= self.latency_ns:
            self.server.latency.note(
                "fast-command" if row.fast else "command", now_ms, taken // 1000000)
        return 0

    cdef int count_error(self, str message) except -1:
        """Count an error reply by its code."""
        code = message.split(" ", 1)[0]
        self.error_replies += 1
        if code in self.errors_by_code or len(self.errors_by_code) < CODES_MAX:
            self.errors_by_code[code] = self.errors_by_code.get(code, 0) + 1
        return 0

    cdef int uncount_call(self, Row row, Client client) noexcept:
        """Take back the count of this call: it blocks, and as in Redis counts when its wait
        ends."""
        row.calls -= 1
        self.commands -= 1
        client.total_commands -= 1
        return 0

    cdef int count_ended_call(self, Row row, Client client, bint failed) except -1:
        """Count a call whose wait ended with a reply."""
        row.calls += 1
        row.failed += failed
        self.commands += 1
        client.total_commands += 1
        return 0

    cdef int set_slow(self, int64_t slow_us, uint64_t latency_ms) noexcept:
        self.slow_ns = slow_us * 1000 if slow_us >= 0 else -1
        self.latency_ns = latency_ms * 1000000
        self.exact = 0 <= self.slow_ns < EXACT_BELOW_NS
        return 0

    cdef int reset(self) except -1:
        self.errors_by_code = {}
        self.error_replies = 0
        self.commands = 0
        self.reads = 0
        return 0


cdef str unknown_command(Args args):
    """Redis' error text: for a container, it names the subcommand; otherwise the command and its
    first arguments, each cut to 128 bytes in total."""
    command = COMMANDS.get(args[0].lower())
    if command is not None:
        return unknown_subcommand(command.name.upper(), args[1]).message
    quoted = ""
    for word in args.all()[1:]:
        if len(quoted) >= UNKNOWN_ARGS_BYTES:
            break
        text = word[:UNKNOWN_ARGS_BYTES - len(quoted)].decode("utf-8", "surrogateescape")
        quoted += f"'{text}' "
    name = args[0][:UNKNOWN_ARGS_BYTES].decode("utf-8", "surrogateescape")
    beginning = f", with args beginning with: {quoted}" if quoted else ""
    return f"ERR unknown command '{name}'{beginning}"
