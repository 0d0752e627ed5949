"""A naive model of the server's promises: commands on plain data.

The model gets the requests and the times at which the server processed them, runs each command, and
predicts every reply. Where the server has a choice (how late a timer runs, which of two due keys
comes first, which entries are evicted with a block), the model gets the ended waits and the trimmed
entries, and checks that the choice was allowed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.sim import trims, users
from tests.sim.data import ZERO, Data, EntryId, Group, Pending, Retry, Stream, Value
from tests.sim.replay import demand
from tests.support.resp import Reply

from millstream.commands.table.loader import load_table
from millstream.commands.table.registry import COMMANDS

U64_MAX = 2**64 - 1
TRIMMED_AT_ONCE = 1000  # maximum of blocks that an append trims; the timer trims the rest
AGE_GRACE_MS = 1000  # an entry that is too old is evicted within this time
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
ID_TOO_LOW = "ERR The ID specified in XADD is equal or smaller than the target stream top item"
KEY_NEEDED = (
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use "
    "the MKSTREAM option to create an empty stream automatically."
)
ID_ZERO = "ERR The ID specified in XADD must be greater than 0-0"

Request = tuple[bytes, ...]
Key = tuple[int, bytes]


class Status(str):
    """+OK"""


class Pairs(list["Answer"]):
    """[key, value] pairs: a map in RESP3."""


class Fields(list["Answer"]):
    """A map: a flat array in RESP2."""


class Refused(Exception):
    """The command returns this error."""


load_table()
WRITES = {name.decode() for name, row in COMMANDS.items() if "write" in row.flags} | {"xgroup"}
# XADD's options, each with its number of words.
XADD_OPTIONS = {b"MAXLEN": 2, b"MINID": 2, b"DELREF": 1, b"ACKED": 1, b"KEEPREF": 1, b"IDMP": 3,
                b"NOMKSTREAM": 1}  # fmt: skip
NEVER_QUEUED = {"multi", "exec", "discard", "watch"}
NEED_MEMORY = {name for name, row in COMMANDS.items() if "denyoom" in row.flags}
OUT_OF_MEMORY = "OOM command not allowed when used memory > 'maxmemory'."

NULL_ARRAY = object()
ANY = object()  # a reply whose text is not predicted

Answer = object


class Judged:
    """A reply without predicted bytes: a function checks it."""

    def judge(self, reply: Reply) -> None:
        raise NotImplementedError


def encoded(answer: Answer, resp: int) -> bytes:
    """A reply's bytes."""
    if answer is None:
        return b"_\r\n" if resp == 3 else b"$-1\r\n"
    if answer is NULL_ARRAY:
        return b"_\r\n" if resp == 3 else b"*-1\r\n"
    if isinstance(answer, Status):
        return b"+%s\r\n" % answer.encode()
    if isinstance(answer, Refused):
        return b"-%s\r\n" % str(answer).encode()
    if isinstance(answer, int):
        return b":%d\r\n" % answer
    if isinstance(answer, bytes):
        return b"$%d\r\n%s\r\n" % (len(answer), answer)
    assert isinstance(answer, list)
    if isinstance(answer, Pairs) and resp == 3:
        words = [word for pair in answer for word in pair]  # type: ignore[attr-defined]
        return b"%%%d\r\n" % len(answer) + b"".join(encoded(one, resp) for one in words)
    if isinstance(answer, Fields) and resp == 3:
        return b"%%%d\r\n" % (len(answer) // 2) + b"".join(encoded(one, resp) for one in answer)
    return b"*%d\r\n" % len(answer) + b"".join(encoded(one, resp) for one in answer)


def dotted(entry_id: EntryId) -> bytes:
    return b"%d.%d" % entry_id


def _dashed(entry_id: EntryId) -> bytes:
    return b"%d-%d" % entry_id


def parse_id(text: bytes) -> EntryId:
    ms, _, seq = text.replace(b"-", b".").partition(b".")
    return int(ms), int(seq or 0)


@dataclass(slots=True)
class Due:
    """A reply that a client must get. `seq` must be durable before; `queued` are the requests that
    an EXEC runs."""

    request: Request
    answer: Answer
    now_ms: int
    seq: int | None = None
    queued: list[Request] = field(default_factory=list)
    is_unknown: bool = False
    """The journal failed in the tick of the request: no reply may be sent."""

    @property
    def is_known(self) -> bool:
        """Whether the reply's text is predicted."""
        answers = self.answer if isinstance(self.answer, list) else [self.answer]
        return all(answer is not ANY and not isinstance(answer, Judged) for answer in answers)


@dataclass(eq=False, slots=True)
class ClientModel:
    number: int
    resp: int
    db: int = 0
    queue: list[Request] | None = None  # since MULTI
    queue_failed: bool = False
    watches: dict[Key, object] = field(default_factory=dict)  # with the results of `mark_of`
    requests: deque[Request] = field(default_factory=deque)
    due: deque[Due] = field(default_factory=deque)
    waiter: Waiter | None = None
    is_held: bool = False
    gone: bool = False
    is_limited: bool = False  # logged in as the restricted user


@dataclass(eq=False, slots=True)
class Waiter:
    """A client's blocked read. Group None: a read without a group; with a consumer: XREADGROUP."""

    client: ClientModel
    request: Request
    keys: list[Key]
    limit: int
    with_info: bool
    deadline_ms: int
    after: EntryId
    from_end: bool = False
    group: bytes | None = None
    ttl_ms: int = 0
    retry: Retry | None = None
    key_was_gone: bool = False
    incarnation: int = 0  # of the stream at the key when it was last checked
    number: int = 0
    consumer: bytes | None = None
    keep: bool = True
    claim_ms: int | None = None

    @property
    def kind(self) -> object:
        """Reads of the same kind find the same entries or none."""
        return self.consumer is not None, self.claim_ms

    @property
    def key(self) -> Key:
        """The key of a TREAD, which has one."""
        [key] = self.keys
        return key


@dataclass(slots=True)
class Queue:
    """The waiters on a key, in the order of arrival."""

    plain: list[Waiter] = field(default_factory=list)
    groups: dict[bytes, list[Waiter]] = field(default_factory=dict)

    def of(self, name: bytes | None) -> list[Waiter]:
        return self.plain if name is None else self.groups.setdefault(name, [])

    def all(self) -> list[Waiter]:
        return [*self.plain, *(waiter for group in self.groups.values() for waiter in group)]


# Events that a server reports, in order.


@dataclass(slots=True)
class Turn:
    """The server began with a client or with due changes; the error with which it refuses writes,
    if any. is_slow: requests and due changes wait for the disk."""

    write_error: str | None
    is_slow: bool = False


@dataclass(slots=True)
class Added:
    """The server appended to the stream at a key."""

    key: Key


@dataclass(slots=True)
class Trimmed:
    """The server evicted entries of the stream at a key; `first` is its first entry now."""

    key: Key
    first: EntryId | None


@dataclass(slots=True)
class Room:
    """The server checked its memory and evicted blocks. full: it refuses commands that need
    memory."""

    full: bool
    dropped: list[Trimmed]


@dataclass(slots=True)
class Done:
    """The server completed a request."""

    request: Request


@dataclass(slots=True)
class Held:
    """A client's request waits for the disk."""

    number: int
    words: list[bytes]


@dataclass(slots=True)
class Released:
    """These clients no longer wait for the disk."""

    numbers: list[int]


Told = Turn | Added | Trimmed | Room | Done | Held | Released


@dataclass(slots=True)
class Read:
    """A TREAD's arguments."""

    key: bytes
    last_id: bytes
    limit: int
    block_ms: int | None = None
    group: bytes | None = None
    ttl_ms: int = 0
    retry: Retry | None = None
    with_info: bool = False

    @staticmethod
    def parsed(words: Request) -> Read:
        read = Read(words[1], words[2], int(words[3]))
        at = 4
        while at < len(words):
            option = words[at].upper()
            if option == b"BLOCK":
                read.block_ms = int(words[at + 1])
                at += 2
            elif option == b"GROUP":
                read.group, read.ttl_ms = words[at + 1], int(words[at + 2])
                at += 3
            elif option == b"RETRY":
                read.retry = int(words[at + 1]), int(words[at + 2])
                at += 3
            else:
                assert option == b"WITHINFO"
                read.with_info = True
                at += 1
        return read


Handler = Callable[["Model", "ClientModel", Request], Answer]
HANDLERS: dict[str, Handler] = {}


def needs_memory(request: Request) -> bool:
    name = request[0].lower()
    return name in NEED_MEMORY or (name == b"xgroup" and request[1] == b"CREATE")


def does(*names: str) -> Callable[[Handler], Handler]:
    """Register a function as the model of commands. Refused writes are handled before it."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return register


class Model:
    def __init__(
        self,
        data: Data,
        now_ms: int,
        told: deque[Told],
        block_entries: int = 1,
        steady_ahead_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """Continue from the data that a server loaded at `now_ms`. `told` has the server's events.
        The other arguments are the maximum of entries in a block, and how far its steady clock is
        ahead."""
        self._told = told
        self._steady_ahead_ms = steady_ahead_ms
        self._block_entries = block_entries
        self.data = data
        self.rules: list[users.Selector] = [users.Selector()]  # of the restricted user
        self.now_ms = now_ms
        self.write_error: str | None = None
        self.memory_full = False
        self.is_slow = False
        self._held: dict[int, ClientModel] = {}
        self._made_as: dict[int, int] = {}  # incarnations as we count them, and the server's
        self.untagged: list[Due] = []
        self.waiters = 0
        self._arrivals = 0
        self._queues: dict[Key, Queue] = {}
        self._ready: list[Key] = []
        self._remade: set[tuple[Key, bytes]] = set()
        self._resumable: list[ClientModel] = []
        self._incarnation = 1 << 60  # the server's numbers are not predicted
        self._changes: dict[Key, int] = {}
        self.watchers: dict[int, ClientModel] = {}  # by number; some have no watches any longer
        for database in data.databases:
            for value in database.values():
                if isinstance(value, Stream):
                    for group in value.groups.values():
                        group.last_used_ms = self.steady_ms

    @property
    def steady_ms(self) -> int:
        """The time for waits of clients and groups."""
        return self.now_ms + self._steady_ahead_ms()

    # ------------------------------------------------------------ events of the server

    def _turn(self, now_ms: int) -> None:
        """The server begins with the next client or with due changes."""
        self.now_ms = now_ms
        while not isinstance(turn := self._told.popleft(), Turn):
            if isinstance(turn, Released):
                self._release(turn)
        self.write_error, self.is_slow = turn.write_error, turn.is_slow
        if self._told and isinstance(room := self._told[0], Room):
            self._told.popleft()
            self._meet(room)

    def take_rest(self) -> None:
        """A client that had to stop got another turn without remaining requests."""
        for told in self._told:
            if isinstance(told, Room):
                self._meet(told)
            elif isinstance(told, Released):
                self._release(told)
        self._told.clear()

    def _release(self, released: Released) -> None:
        for number in released.numbers:
            client = self._held.pop(number)
            client.is_held = False
            self._resumable.append(client)

    def _meets_slow_disk(self, client: ClientModel) -> bool:
        """Whether the client's next request waits, according to the first event for this client."""
        for told in self._told:
            if isinstance(told, Held):
                return told.words == list(client.requests[0])
            if isinstance(told, Turn | Done):
                return False
        return False

    def _meet(self, room: Room) -> None:
        self.memory_full = room.full
        for trimmed in room.dropped:
            self._drop(trimmed)

    def _drop(self, trimmed: Trimmed) -> None:
        """Blocks were evicted for lack of memory; WatchedEviction has checked which ones."""
        stream = self.value(trimmed.key)
        assert isinstance(stream, Stream), f"{trimmed} of no stream"
        gone = trims.before(stream, trimmed.first)
        demand(0 < len(gone) <= self._block_entries, f"{gone} went with one block")
        stream.evict(gone)

    def look_for_memory(self, now_ms: int) -> None:
        """The server checks its memory without a request."""
        self._turn(now_ms)

    def feed(self, client: ClientModel, requests: list[Request], now_ms: int) -> None:
        """These requests have arrived as a whole; they run unless the client waits."""
        client.requests += requests
        if client.waiter is None and not client.is_held:
            self._run(client, now_ms)

    def resume(self, client: ClientModel) -> None:
        """The client has taken its replies: it continues at the end of the tick."""
        self._resumable.append(client)

    def end_tick(self, now_ms: int, seq: int, full: set[int]) -> None:
        """Clients with ended waits continue, except those in `full`, whose replies were not
        taken; replies so far require that `seq` is durable."""
        resuming, self._resumable = self._resumable, []
        for client in resuming:
            is_stopped = client.waiter is not None or client.is_held or client.number in full
            if not is_stopped and not client.gone:
                self._run(client, now_ms)
        for due in self.untagged:
            due.seq = seq
        self.untagged = []

    def timer(
        self,
        now_ms: int,
        served: list[int],
        has_group: Callable[[Key, bytes], bool],
        oldest: Callable[[Key], EntryId | None],
    ) -> None:
        """The server applied due changes, and served these clients in this order. `oldest` returns
        the current first entry of a stream."""
        self._turn(now_ms)
        late = [w for w in self._all_waiters() if 0 < w.deadline_ms <= self.steady_ms]
        for waiter in sorted(late, key=lambda w: (w.deadline_ms, w.number)):
            self.timeout(waiter)
        waiters = {waiter.client.number: waiter for waiter in self._all_waiters()}
        for number in served:
            if number in waiters:
                for key in waiters[number].keys:
                    self.mark_ready(key)
        for key, name, group in self._groups():
            if self._is_over(key, name, group) and not has_group(key, name):
                self.drop_group(key, name)
        if self.write_error is None and not self.is_slow:
            for key in self.expired(now_ms):
                self.delete(key)
            self._trim_by_policy(oldest)
        self._serve_ready()

    def _trim_by_policy(self, oldest: Callable[[Key], EntryId | None]) -> None:
        """Check that the server's timer evicted only entries that the policy does not keep. It need
        not evict all of them."""
        for number, database in enumerate(self.data.databases):
            for name, value in database.items():
                may_go = (
                    trims.may_go(value, self.now_ms, self._block_entries)
                    if isinstance(value, Stream)
                    else []
                )
                if may_go:
                    assert isinstance(value, Stream)
                    first = oldest((number, name))
                    value.evict([i for i in may_go if first is None or i < first])

    def leave(self, client: ClientModel, now_ms: int) -> None:
        """The client's connection was closed."""
        self.now_ms = now_ms
        client.gone = True
        self.watchers.pop(client.number, None)
        self._held.pop(client.number, None)
        if client.waiter is not None:
            self._remove(client.waiter)
        client.due.clear()
        client.requests.clear()

    def upkeep(self, now_ms: int) -> None:
        """Apply all due automatic changes, like a server after its timers ran."""
        self.now_ms = now_ms
        for key in self.expired(now_ms):
            self.delete(key)
        for key, name, group in self._groups():
            if self._is_over(key, name, group):
                self.drop_group(key, name)
            else:
                self._expire(group)
        self._ready = []

    def overdue(self, now_ms: int, patient: bool, by_age: bool) -> str | None:
        """Describes a due change that is still open although the timers ran, or None. patient: the
        server refused writes shortly before; by_age: include changes by time of day, which the
        server may not have checked yet."""
        self.now_ms = now_ms
        for database in self.data.databases:
            for name, value in database.items():
                if patient or not by_age or not isinstance(value, Stream):
                    continue
                over = trims.must_go(value, now_ms, self._block_entries, AGE_GRACE_MS)
                if over:
                    return f"{name!r} has entries that its policy does not keep: {over}"
        for waiter in self._all_waiters():
            if 0 < waiter.deadline_ms <= self.steady_ms:
                return f"the wait of client {waiter.client.number} is over: {waiter}"
            for number, key in waiter.keys:
                expiry_ms = self.data.expiries[number].get(key, now_ms + 1)
                stream = self.data.databases[number].get(key) if expiry_ms > now_ms else None
                late = self._late(waiter, stream) if isinstance(stream, Stream) else None
                if late is not None and not (patient and waiter.group is not None):
                    return f"client {waiter.client.number} waits and {late}: {waiter}"
        return None

    def _late(self, waiter: Waiter, stream: Stream) -> str | None:
        if waiter.group is None:
            return "its entry is there" if stream.newer(waiter.after) else None
        group = stream.groups.get(waiter.group)
        if group is None:
            return "its group is gone"
        self._expire(group)
        if waiter.consumer is None:
            due = group.due(self.steady_ms, False)
        elif waiter.claim_ms is not None:
            due = claims.looked_at(stream, group, self.steady_ms, waiter.claim_ms, waiter.limit)
        else:
            due = []
        new = stream.newer(group.offset)
        return f"{due} are due and {new} new" if due or new else None

    # ------------------------------------------------------------ running

    def _run(self, client: ClientModel, now_ms: int) -> None:
        self._turn(now_ms)
        while client.requests and client.waiter is None:
            if self._meets_slow_disk(client):
                client.is_held = True
                self._held[client.number] = client
                return
            request = client.requests.popleft()
            queued = client.queue
            answer = self.outcome(client, request, queued is not None)
            if isinstance(answer, Waiter):
                self._wait(answer)
            else:
                self._answer(client, request, answer, queued if request[0] == b"EXEC" else None)
            self._serve_ready()

    def outcome(self, client: ClientModel, request: Request, in_queue: bool) -> Answer:
        """The reply to a request, including errors."""
        name = request[0].decode().lower()
        try:
            if name == "exec":
                self._check_exec(client, request)
            self.check_permission(client, request)
            if self.memory_full and needs_memory(request):
                raise Refused(OUT_OF_MEMORY)
            if not in_queue or name in NEVER_QUEUED:
                answer = self._perform(client, name, request)
                self._end_request(request)
                return answer
            if name in WRITES:
                self.check_writable()
            if name == "save":
                raise Refused("ERR Command not allowed inside a transaction")
            assert client.queue is not None
            client.queue.append(request)
            return Status("QUEUED")
        except Refused as refusal:
            is_denied = str(refusal).startswith("NOPERM")
            if in_queue and (is_denied or name not in NEVER_QUEUED):
                client.queue_failed = client.queue is not None
            return refusal

    def check_permission(
        self, client: ClientModel, request: Request, *, at_exec: bool = False
    ) -> None:
        """Refuse what the rules of the client's user do not allow."""
        denied = users.refusal(self.rules, request, at_exec=at_exec) if client.is_limited else None
        if denied is not None:
            raise Refused(denied)

    def _check_exec(self, client: ClientModel, request: Request) -> None:
        """A denied EXEC ends the transaction."""
        try:
            self.check_permission(client, request)
        except Refused as denied:
            client.queue, client.queue_failed = None, False
            client.watches.clear()
            raise Refused(f"EXECABORT Transaction discarded because of: {denied}") from None

    def set_rules(self, rules: list[users.Selector]) -> None:
        """The restricted user has these rules now: reads that wait for what they forbid end."""
        self.rules = rules
        for waiter in sorted(self._all_waiters(), key=lambda waiter: waiter.client.number):
            denied = users.refusal(rules, waiter.request) if waiter.client.is_limited else None
            if denied is not None:
                self.end_wait(waiter, Refused(denied))

    def _end_request(self, request: Request) -> None:
        """The next events belong to another request. The end of an EXEC has no event."""
        done = Done(request)
        if request[0] != b"EXEC" and done in self._told:
            while self._told.popleft() != done:
                pass

    def _perform(self, client: ClientModel, name: str, request: Request) -> Answer:
        handler = HANDLERS.get(name)
        if handler is None:
            return getattr(self, "_do_" + name)(client, request)  # type: ignore[no-any-return]
        if name in WRITES:
            self.check_writable()
        return handler(self, client, request)

    def _answer(
        self,
        client: ClientModel,
        request: Request,
        answer: Answer,
        queued: list[Request] | None = None,
    ) -> None:
        due = Due(request, answer, self.now_ms, queued=queued or [])
        client.due.append(due)
        self.untagged.append(due)

    def check_writable(self) -> None:
        if self.write_error is not None:
            raise Refused(self.write_error)

    # ------------------------------------------------------------ values

    def value(self, key: Key) -> Value | None:
        """The value at a key; an expired key is deleted, as in the server."""
        number, name = key
        expiry_ms = self.data.expiries[number].get(name)
        if expiry_ms is not None and expiry_ms <= self.now_ms:
            if self.write_error is None:
                self.delete(key)
            return None
        return self.data.databases[number].get(name)

    def expired(self, now_ms: int) -> list[Key]:
        """Expired keys, in order of their expiry."""
        due = [
            (number, at_ms, name)
            for number, expiries in enumerate(self.data.expiries)
            for name, at_ms in expiries.items()
            if at_ms <= now_ms
        ]
        return [(number, name) for number, _, name in sorted(due)]

    def note_change(self, key: Key) -> None:
        """Note that the value at a key is replaced or removed, or gets another expiry."""
        self._changes[key] = self._changes.get(key, 0) + 1

    def mark_of(self, key: Key) -> object:
        """A value that differs after a watched key was changed."""
        value = self.value(key)
        if not isinstance(value, Stream):
            return self._changes.get(key), value
        return (self._changes.get(key), value.incarnation, value.entries_added, len(value.entries),
                value.entries_deleted, value.entries_evicted, value.last_id,
                value.max_deleted)  # fmt: skip

    def put(self, key: Key, value: Value, keep_expiry: bool = False) -> None:
        self.note_change(key)
        self.data.put(*key, value, keep_expiry)
        self.mark_ready(key)

    def delete(self, key: Key) -> None:
        self.note_change(key)
        self.data.drop(*key)
        self.mark_ready(key)

    def set_expiry(self, key: Key, at_ms: int) -> None:
        """0: never."""
        self.note_change(key)
        if at_ms:
            self.data.expiries[key[0]][key[1]] = at_ms
        else:
            self.data.expiries[key[0]].pop(key[1], None)

    def leave_key(self, key: Key) -> None:
        """A stream moves to another key, without the readers that wait on its groups: for these
        groups the wait ends. Groups that have ended do not exist at the new key."""
        value, queue = self.data.databases[key[0]][key[1]], self._queues.get(key)
        if not isinstance(value, Stream):
            return
        for name, group in list(value.groups.items()):
            if queue is not None and name in queue.groups:
                group.last_used_ms = self.steady_ms
            elif self._is_over(key, name, group):
                del value.groups[name]

    def new_incarnation(self) -> int:
        self._incarnation += 1
        return self._incarnation

    # ------------------------------------------------------------ waiting

    def waiter_of(self, number: int) -> Waiter | None:
        """The wait of the client with this number."""
        return next((w for w in self._all_waiters() if w.client.number == number), None)

    def waiting_keys(self, number: int) -> list[Key]:
        """The keys of a database with waiting clients."""
        return [key for key in self._queues if key[0] == number]

    def gives_up(self, waiter: Waiter) -> Answer:
        """The reply to a read in a transaction that would otherwise wait."""
        return self.timeout_answer(waiter)

    def timeout(self, waiter: Waiter) -> None:
        self.end_wait(waiter, self.timeout_answer(waiter))

    def _all_waiters(self) -> list[Waiter]:
        waiters = [waiter for queue in self._queues.values() for waiter in queue.all()]
        return list(dict.fromkeys(waiters))

    def _wait(self, waiter: Waiter) -> None:
        waiter.client.waiter = waiter
        self._arrivals += 1
        waiter.number = self._arrivals
        for key in dict.fromkeys(waiter.keys):
            self._queues.setdefault(key, Queue()).of(waiter.group).append(waiter)
        self.waiters += 1

    def _remove(self, waiter: Waiter) -> None:
        """End a wait; the time to live of its group restarts."""
        self.waiters -= 1
        waiter.client.waiter = None
        for key in dict.fromkeys(waiter.keys):
            queue = self._queues[key]
            queue.of(waiter.group).remove(waiter)
            if waiter.group is not None and not queue.groups[waiter.group]:
                del queue.groups[waiter.group]
            if not queue.all():
                del self._queues[key]
            stream = self.data.databases[key[0]].get(key[1])
            if waiter.group is not None and isinstance(stream, Stream):
                group = stream.groups.get(waiter.group)
                if group is not None:
                    group.last_used_ms = self.steady_ms

    def end_wait(self, waiter: Waiter, answer: Answer) -> None:
        self._remove(waiter)
        self._answer(waiter.client, waiter.request, answer)
        self._resumable.append(waiter.client)

    def timeout_answer(self, waiter: Waiter) -> Answer:
        if not waiter.with_info:
            return NULL_ARRAY
        stream = self.value(waiter.key)
        return [self._info(stream if isinstance(stream, Stream) else None)]

    def mark_ready(self, key: Key) -> None:
        if key in self._queues and key not in self._ready:
            self._ready.append(key)

    def _serve_ready(self) -> None:
        while self._ready:
            ready, self._ready = self._ready, []
            self._remade.clear()
            for key in ready:
                queue = self._queues.get(key)
                empty_handed: set[tuple[bytes, object]] = set()
                for waiter in [] if queue is None else queue.all():
                    if waiter.consumer is None or waiter.group is None:
                        self._try_again(waiter)
                    elif (waiter.group, waiter.kind) not in empty_handed:
                        self._try_consumer_again(waiter)
                        if waiter.client.waiter is waiter:
                            empty_handed.add((waiter.group, waiter.kind))

    def _try_consumer_again(self, waiter: Waiter) -> None:
        """End an XREADGROUP with an error if one of its groups was deleted, even if created
        again."""
        assert waiter.group is not None
        if self.write_error is not None:
            return
        try:
            for key in waiter.keys:
                if (key, waiter.group) in self._remade:
                    raise self._no_group(waiter.client, key[1], waiter.group)
                self._open(waiter.client, key[1], waiter.group)
            answer = self._consume(waiter, [b">"] * len(waiter.keys))
        except Refused as refusal:
            self.end_wait(waiter, refusal)
            return
        if answer is not None:
            self.end_wait(waiter, answer)

    def _try_again(self, waiter: Waiter) -> None:
        value = self.value(waiter.key)
        if waiter.group is not None and self.write_error is not None:
            return
        if value is None:
            waiter.key_was_gone = True
            return
        if isinstance(value, bytes):
            self.end_wait(waiter, Refused(WRONG_TYPE))
            return
        if waiter.group is None:
            if value.newer(waiter.after):
                answer = self._plain_answer(value, waiter.after, waiter.limit, waiter.with_info)
                self.end_wait(waiter, answer)
            return
        group = self.live(waiter.key, waiter.group)
        if group is None and waiter.request[2] == b">":
            self.end_wait(waiter, self._not_existing(waiter.key[1], waiter.group))
            return
        if group is None:
            is_other = waiter.key_was_gone or waiter.incarnation != value.incarnation
            offset = waiter.after if is_other else value.last_id
            group = value.make_group(waiter.group, offset, waiter.ttl_ms, self.steady_ms)
            self._remade.add((waiter.key, waiter.group))
        waiter.key_was_gone, waiter.incarnation = False, value.incarnation
        found = self._give(value, group, waiter.limit, waiter.retry, waiter.with_info, False)
        if found is not None:
            self.end_wait(waiter, found)

    # ------------------------------------------------------------ automatic changes of groups

    def _groups(self) -> list[tuple[Key, bytes, Group]]:
        return [
            ((number, key), name, group)
            for number, database in enumerate(self.data.databases)
            for key, value in database.items()
            if isinstance(value, Stream)
            for name, group in value.groups.items()
        ]

    def _is_over(self, key: Key, name: bytes, group: Group) -> bool:
        queue = self._queues.get(key)
        if group.ttl_ms == 0 or (queue is not None and name in queue.groups):
            return False
        return self.steady_ms >= group.last_used_ms + group.ttl_ms

    def drop_group(self, key: Key, name: bytes) -> None:
        stream = self.data.databases[key[0]][key[1]]
        assert isinstance(stream, Stream)
        del stream.groups[name]
        self.mark_ready(key)

    def _expire(self, group: Group) -> None:
        group.forget(group.expired(self.steady_ms))

    def live(self, key: Key, name: bytes) -> Group | None:
        stream = self.value(key)
        assert isinstance(stream, Stream)
        group = stream.groups.get(name)
        if group is None:
            return None
        if self._is_over(key, name, group):
            self.drop_group(key, name)
            return None
        self._expire(group)
        return group

    # ------------------------------------------------------------ delivery

    def _give(
        self, stream: Stream, group: Group, limit: int, retry: Retry | None, with_info: bool,
        with_zero: bool,
    ) -> list[Answer] | None:  # fmt: skip
        """A group read's reply; None when there are no entries."""
        due = group.due(self.steady_ms, with_zero)[:limit]
        new = stream.newer(group.offset)
        if limit == 0 or not (due or new):
            return None
        reply: list[Answer] = [self._info(stream)] if with_info else []
        new = new[: limit - len(due)]
        if new and group.offset < stream.max_evicted and group.gap_floor < stream.max_evicted:
            reply.append(None)
        reply += [self._give_again(stream, group, entry_id, retry) for entry_id in due]
        for entry_id in new:
            reply.append([dotted(entry_id), *stream.entries[entry_id]])
            group.offset = entry_id
            if retry is not None:
                group.pending[entry_id] = Pending(self.steady_ms, self.steady_ms, 1, retry)
                group.note(group.pending[entry_id], again=False)
        self._expire(group)
        group.last_used_ms = self.steady_ms
        return reply

    def _give_again(
        self, stream: Stream, group: Group, entry_id: EntryId, retry: Retry | None
    ) -> Answer:
        if entry_id not in stream.entries:
            del group.pending[entry_id]
            return None
        group.redeliver(entry_id, self.steady_ms, retry)
        group.note(group.pending[entry_id])
        return [dotted(entry_id), *stream.entries[entry_id]]

    def judge_incarnation(self, stream: Stream, shown: int) -> None:
        """Check that equal incarnations mean the same stream, and different ones different
        streams."""
        known = self._made_as.setdefault(stream.incarnation, shown)
        others = list(self._made_as.values()).count(shown)
        demand(known == shown and others == 1, f"incarnation {shown} and not {known}, of {others}")

    def _info(self, stream: Stream | None) -> Answer:
        if stream is None:
            return [None, None]
        if not stream.entries:
            return [None, dotted(stream.last_id)]
        return [dotted(min(stream.entries)), dotted(max(stream.entries))]

    def _plain_answer(
        self, stream: Stream | None, after: EntryId, limit: int, with_info: bool
    ) -> list[Answer]:
        reply: list[Answer] = [self._info(stream)] if with_info else []
        if stream is None or limit == 0:
            return reply
        if ZERO < after < stream.max_evicted:
            reply.append(None)
        reply += [[dotted(i), *stream.entries[i]] for i in stream.newer(after)[:limit]]
        return reply

    # ------------------------------------------------------------ streams

    def stream(self, client: ClientModel, key: bytes) -> Stream | None:
        value = self.value((client.db, key))
        if isinstance(value, bytes):
            raise Refused(WRONG_TYPE)
        return value

    def make(self, client: ClientModel, key: bytes) -> Stream:
        stream = self.stream(client, key)
        if stream is None:
            stream = Stream(self.new_incarnation())
            self.put((client.db, key), stream)  # waiting readers have its groups again
        return stream

    def append(
        self,
        client: ClientModel,
        key: bytes,
        words: Request,
        entry_id: EntryId | None = None,
        is_last: bool = True,
    ) -> EntryId:
        """`is_last`: the last entry of a request, after which the policy is applied and events are
        reported."""
        stream = self.make(client, key)
        if entry_id is None:
            ms, seq = stream.last_id
            entry_id = (self.now_ms, 0) if self.now_ms > ms else (ms, seq + 1)
        stream.append(entry_id, words)
        while is_last and self._told and isinstance(self._told[0], Added | Trimmed):
            if self._told.popleft() == Added((client.db, key)):
                break
        if is_last:
            self.keep_policy((client.db, key), stream)
        self.mark_ready((client.db, key))
        return entry_id

    def keep_policy(self, key: Key, stream: Stream) -> None:
        """Apply the policy after an append, or when it is set."""
        if stream.policy is None:
            return
        at_once = len(stream.entries) < TRIMMED_AT_ONCE
        if trims.is_foretold(stream.policy) and at_once:
            self.evict(key, stream, trims.may_go(stream, self.now_ms, self._block_entries))
            return
        may_go = set(trims.may_go(stream, self.now_ms, self._block_entries))
        if self._told and isinstance(trimmed := self._told[0], Trimmed) and trimmed.key == key:
            gone = trims.before(stream, trimmed.first)
            if may_go.issuperset(gone):  # otherwise the command itself evicted the entries
                self.evict(key, stream, gone)
        over = trims.must_go(stream, self.now_ms, self._block_entries)
        demand(not (over and at_once), f"{key} keeps {over}, which its policy does not")

    def evict(self, key: Key, stream: Stream, gone: list[EntryId]) -> int:
        """Evict the entries that the server reported, or must have reported."""
        if gone and self._told and isinstance(told := self._told[0], Trimmed) and told.key == key:
            self._told.popleft()
        return stream.evict(gone)

    def _do_tappend(self, client: ClientModel, words: Request) -> Answer:
        self.check_writable()
        return dotted(self.append(client, words[1], words[2:]))

    def _do_tappev(self, client: ClientModel, words: Request) -> Answer:
        self.check_writable()
        _, key, unit, number, *fields = words
        reply: Answer = 0
        if fields:
            reply = dotted(self.append(client, key, tuple(fields)))
        stream = self.stream(client, key)
        if stream is None:
            return 0
        if unit.upper() == b"COUNT":
            ids = list(stream.entries)
            gone = ids[: max(0, len(ids) - int(number))]
        else:
            now_ms = max(self.now_ms, stream.last_id[0])
            gone = [i for i in stream.entries if now_ms - i[0] >= int(number)]
        evicted = self.evict((client.db, key), stream, gone)
        return reply if fields else evicted

    def _do_xadd(self, client: ClientModel, words: Request) -> Answer:
        self.check_writable()
        key, at = words[1], 2
        while words[at] in XADD_OPTIONS:
            at += XADD_OPTIONS[words[at]]
        options, text, fields = words[:at], words[at], words[at + 1 :]
        stream = self.stream(client, key)
        known = claims.known(self, stream, options)
        if known is not None:
            return _dashed(known)
        entry_id = None
        if text != b"*":
            entry_id = parse_id(text)
            if entry_id == ZERO:
                raise Refused(ID_ZERO)
            if stream is not None and entry_id <= stream.last_id:
                raise Refused(ID_TOO_LOW)
        made = self.append(client, key, fields, entry_id)
        stream = self.make(client, key)
        claims.note_once(self, stream, options, made)
        if b"MAXLEN" in options or b"MINID" in options:
            claims.trim(self, client, key, stream, options)
        return _dashed(made)

    def _do_xdel(self, client: ClientModel, words: Request) -> Answer:
        self.check_writable()
        stream = self.stream(client, words[1])
        return 0 if stream is None else sum(stream.delete(parse_id(i)) for i in words[2:])

    def _do_xlen(self, client: ClientModel, words: Request) -> Answer:
        stream = self.stream(client, words[1])
        return 0 if stream is None else len(stream.entries)

    def _do_trange(self, client: ClientModel, words: Request) -> Answer:
        stream = self.stream(client, words[1])
        if stream is None:
            return []
        start = ZERO if words[2] == b"-" else parse_id(words[2])
        ids = [entry_id for entry_id in stream.entries if entry_id >= start]
        if len(words) > 4:
            ids = ids[: int(words[5])]
        return [[dotted(i), *stream.entries[i]] for i in ids]

    # ------------------------------------------------------------ reads

    def _do_tread(self, client: ClientModel, words: Request) -> Answer:
        read = Read.parsed(words)
        blocks = read.block_ms is not None and read.limit > 0
        if read.group is not None:
            return self._read_group(client, words, read, blocks)
        stream = self.stream(client, read.key)
        after = self._start(read, stream)
        if blocks and (stream is None or not stream.newer(after)):
            return self._waiter(client, words, read, after)
        return self._plain_answer(stream, after, read.limit, read.with_info)

    @staticmethod
    def _start(read: Read, stream: Stream | None) -> EntryId:
        if read.last_id not in (b"", b"$", b">"):
            return parse_id(read.last_id)
        return ZERO if stream is None else stream.last_id

    def _waiter(self, client: ClientModel, words: Request, read: Read, after: EntryId) -> Waiter:
        deadline_ms = self.steady_ms + read.block_ms if read.block_ms else 0
        return Waiter(
            client, words, [(client.db, read.key)], read.limit, read.with_info, deadline_ms, after,
            read.last_id in (b"", b"$"), read.group, read.ttl_ms, read.retry,
        )  # fmt: skip

    def _read_group(self, client: ClientModel, words: Request, read: Read, blocks: bool) -> Answer:
        self.check_writable()
        assert read.group is not None
        key = client.db, read.key
        if read.last_id == b">" and self.value(key) is None:
            raise self._not_existing(read.key, read.group)
        stream = self.make(client, read.key)
        group = self.live(key, read.group)
        if group is None and read.last_id == b">":
            raise self._not_existing(read.key, read.group)
        if group is None:
            offset = self._start(read, stream)
            group = stream.make_group(read.group, offset, read.ttl_ms, self.steady_ms)
        group.ttl_ms = read.ttl_ms
        reply = self._give(stream, group, read.limit, read.retry, read.with_info, True)
        group.last_used_ms = self.steady_ms
        if reply is not None:
            return reply
        if blocks:
            after = ZERO if read.last_id in (b"", b"$", b">") else parse_id(read.last_id)
            waiter = self._waiter(client, words, read, after)
            waiter.incarnation = stream.incarnation
            return waiter
        return [self._info(stream)] if read.with_info else []

    @staticmethod
    def _not_existing(key: bytes, name: bytes) -> Refused:
        return Refused(
            f"NOGROUP No such key '{key.decode()}' or consumer group '{name.decode()}' in TREAD "
            "with the ID >"
        )

    def _do_tack(self, client: ClientModel, words: Request) -> Answer:
        self.check_writable()
        stream = self.stream(client, words[1])
        group = None if stream is None else self.live((client.db, words[1]), words[2])
        if group is None:
            return 0
        group.last_used_ms = self.steady_ms
        return sum(group.pending.pop(parse_id(i), None) is not None for i in words[3:])

    _do_xack = _do_tack

    # ------------------------------------------------------------ consumers

    @staticmethod
    def _no_group(client: ClientModel, key: bytes, name: bytes) -> Refused:
        return Refused(
            f"NOGROUP No such key '{key.decode()}' or consumer group '{name.decode()}' in "
            "XREADGROUP with GROUP option"
        )

    def _open(self, client: ClientModel, key: bytes, name: bytes) -> Group:
        stream = self.stream(client, key)
        group = None if stream is None else self.live((client.db, key), name)
        if group is None:
            raise self._no_group(client, key, name)
        return group

    def _do_xreadgroup(self, client: ClientModel, words: Request) -> Answer:
        self.check_writable()
        limit, block_ms, keep, claim_ms, at = U64_MAX, None, True, None, 4
        while words[at] != b"STREAMS":
            if words[at] == b"COUNT":
                limit = int(words[at + 1]) or U64_MAX
            elif words[at] == b"BLOCK":
                block_ms = int(words[at + 1])
            elif words[at] == b"CLAIM":
                claim_ms = int(words[at + 1])
            else:
                assert words[at] == b"NOACK"
                keep, at = False, at - 1
            at += 2
        names = words[at + 1 :]
        keys, starts = names[: len(names) // 2], list(names[len(names) // 2 :])
        for key in keys:
            self._open(client, key, words[2])
        waiter = Waiter(
            client, words, [(client.db, key) for key in keys], limit, False,
            self.steady_ms + block_ms if block_ms else 0, ZERO, group=words[2], consumer=words[3],
            keep=keep, claim_ms=claim_ms,
        )  # fmt: skip
        answer = self._consume(waiter, starts)
        for key in keys:
            self._open(client, key, words[2]).last_used_ms = self.steady_ms
        if answer is not None:
            return answer
        return NULL_ARRAY if block_ms is None else waiter

    def _consume(self, waiter: Waiter, starts: list[bytes]) -> Pairs | None:
        """The reply to XREADGROUP: [[key, entries], ...] of the streams with entries."""
        found = Pairs()
        assert waiter.group is not None
        assert waiter.consumer is not None
        claim_ms = waiter.claim_ms
        for (number, key), start in zip(waiter.keys, starts, strict=True):
            stream = self.data.databases[number][key]
            assert isinstance(stream, Stream)
            group = stream.groups[waiter.group]
            group.consumers[waiter.consumer] = None
            if start != b">":
                claim_ms = None  # as in Redis, also for later streams
                found.append([key, self._history(stream, group, waiter, parse_id(start))])
                continue
            given: list[Answer] = []
            if claim_ms is not None:
                given = claims.claim_idle(
                    self, stream, group, waiter.consumer, claim_ms, waiter.limit
                )
            age = [] if claim_ms is None else [0, 0]
            new = stream.newer(group.offset)[: waiter.limit - len(given)]
            for entry_id in new:
                group.offset = entry_id
                if waiter.keep:
                    group.pending[entry_id] = Pending(
                        self.steady_ms, self.steady_ms, 1, None, waiter.consumer
                    )
                    group.note(group.pending[entry_id], again=False)
            given += [[_dashed(i), list(stream.entries[i]), *age] for i in new]
            if given:
                found.append([key, given])
        return found or None

    def _history(
        self, stream: Stream, group: Group, waiter: Waiter, after: EntryId
    ) -> list[Answer]:
        """A consumer's own pending entries, each delivered again."""
        reply: list[Answer] = []
        own = [i for i in group.owned_by(waiter.consumer) if i > after]
        for entry_id in sorted(own)[: waiter.limit]:
            if entry_id not in stream.entries:
                reply.append([_dashed(entry_id), NULL_ARRAY])
                continue
            group.redeliver(entry_id, self.steady_ms, None)
            group.note(group.pending[entry_id])
            reply.append([_dashed(entry_id), list(stream.entries[entry_id])])
        return reply

    # ------------------------------------------------------------ the process

    def _do_ping(self, client: ClientModel, words: Request) -> Answer:
        return Status("PONG")

    def _do_select(self, client: ClientModel, words: Request) -> Answer:
        client.db = int(words[1])
        return Status("OK")

    def _do_config(self, client: ClientModel, words: Request) -> Answer:
        return Status("OK")

    def _do_save(self, client: ClientModel, words: Request) -> Answer:
        return ANY

    _do_bgsave = _do_bgrewriteaof = _do_save


from tests.sim import claims  # noqa: E402 - it uses the names above
from tests.sim import keys as _keys  # noqa: E402, F401
from tests.sim import pages as _pages  # noqa: E402, F401
