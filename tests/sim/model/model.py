"""Runs the requests of clients, and the timers of the server, on the parts of the model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tests.sim import users
from tests.sim.data import Data, EntryId, Stream
from tests.sim.model.answers import OUT_OF_MEMORY, Answer, Refused, Status
from tests.sim.model.clients import ClientModel, Due, Key, Request, Waiter
from tests.sim.model.events import Done, Event, Held, Released, Room, Turn
from tests.sim.model.log import Log
from tests.sim.model.values import ServerState, Values
from tests.sim.model.waits import Waits

from millstream.commands.table.loader import load_table
from millstream.commands.table.registry import COMMANDS

load_table()
# These run on a full disk.
REMOVES = {
    *(b"del", b"unlink", b"getdel", b"delex", b"flushdb", b"flushall"),
    *(b"xtrim", b"xdel", b"xdelex", b"xackdel", b"tpolicy", b"tcancel"),
}
WRITES = {name.decode() for name, row in COMMANDS.items() if "write" in row.flags} | {"xgroup"}
NEVER_QUEUED = {"multi", "exec", "discard", "watch"}
NEED_MEMORY = {name for name, row in COMMANDS.items() if "denyoom" in row.flags}

Handler = Callable[["Model", ClientModel, Request], Answer]
HANDLERS: dict[str, Handler] = {}


def needs_memory(request: Request) -> bool:
    name = request[0].lower()
    return name in NEED_MEMORY or (name == b"xgroup" and request[1] == b"CREATE")


def only_removes(request: Request) -> bool:
    name = request[0].lower()
    if name == b"xgroup":
        return request[1].upper() in (b"DESTROY", b"DELCONSUMER")
    return name in REMOVES or (name == b"tappev" and len(request) == 4)


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
        events: deque[Event],
        block_entries: int = 1,
        steady_ahead_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """Continue from the data that a server loaded at `now_ms`. `events` has the reports of the
        server. The other arguments are the maximum of entries in a block, and how far its steady
        clock is ahead."""
        self._events = events
        self.data = data
        self.state = ServerState(now_ms, steady_ahead_ms)
        self.waits = Waits()
        self.values = Values(data, self.state, self.waits)
        self.log = Log(self.state, self.values, self.waits, events, block_entries)
        self.rules: list[users.Selector] = [users.Selector()]  # of the restricted user
        self.untagged: list[Due] = []
        self.remade: set[tuple[Key, bytes]] = set()  # groups that waits created in this round
        self.watchers: dict[int, ClientModel] = {}  # by number; some have no watches any longer
        self._held: dict[int, ClientModel] = {}
        self._resumable: list[ClientModel] = []

    # ------------------------------------------------------------ events of the server

    def _turn(self, now_ms: int) -> None:
        """The server begins with the next client or with due changes."""
        self.state.now_ms = now_ms
        while not isinstance(turn := self._events.popleft(), Turn):
            if isinstance(turn, Released):
                self._release(turn)
        self.state.write_error, self.state.is_slow = turn.write_error, turn.is_slow
        self.state.may_remove = turn.may_remove
        if self._events and isinstance(room := self._events[0], Room):
            self._events.popleft()
            self._meet(room)

    def take_rest(self) -> None:
        """A client that had to stop got another turn without remaining requests."""
        for event in self._events:
            if isinstance(event, Room):
                self._meet(event)
            elif isinstance(event, Released):
                self._release(event)
        self._events.clear()

    def _release(self, released: Released) -> None:
        for number in released.numbers:
            client = self._held.pop(number)
            client.is_held = False
            self._resumable.append(client)

    def _meets_slow_disk(self, client: ClientModel) -> bool:
        """True if the next request waits, according to the first event for this client."""
        for event in self._events:
            if isinstance(event, Held):
                return event.words == list(client.requests[0])
            if isinstance(event, Turn | Done):
                return False
        return False

    def _meet(self, room: Room) -> None:
        self.state.memory_full = room.full
        for trimmed in room.dropped:
            self.log.drop_block(trimmed)

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
        late = [w for w in self.waits.all() if 0 < w.deadline_ms <= self.state.steady_ms]
        for waiter in sorted(late, key=lambda w: (w.deadline_ms, w.number)):
            self.timeout(waiter)
        waiters = {waiter.client.number: waiter for waiter in self.waits.all()}
        for number in served:
            if number in waiters:
                for key in waiters[number].keys:
                    self.waits.mark_ready(key)
        for key, name, group in self.values.groups():
            if self.values.is_over(key, name, group) and not has_group(key, name):
                self.values.drop_group(key, name)
        if self.state.write_error is None and not self.state.is_slow:
            for key in self.values.expired():
                self.values.delete(key)
            self.log.fire_due()
            self.log.trim_by_policy(oldest)
        self._serve_ready()

    def leave(self, client: ClientModel, now_ms: int) -> None:
        """The client's connection was closed."""
        self.state.now_ms = now_ms
        client.gone = True
        self.watchers.pop(client.number, None)
        self._held.pop(client.number, None)
        if client.waiter is not None:
            self._remove(client.waiter)
        client.due.clear()
        client.requests.clear()

    def upkeep(self, now_ms: int) -> None:
        """Apply all due automatic changes, like a server after its timers ran."""
        self.state.now_ms = now_ms
        for key in self.values.expired():
            self.values.delete(key)
        for key, name, group in self.values.groups():
            if self.values.is_over(key, name, group):
                self.values.drop_group(key, name)
            else:
                self.values.expire(group)
        self.waits.take_ready()

    def overdue(self, now_ms: int, patient: bool, by_age: bool) -> str | None:
        """Describes a due change that is still open although the timers ran, or None. patient: the
        server refused writes shortly before; by_age: include changes by time of day, which the
        server may not have checked yet."""
        self.state.now_ms = now_ms
        kept = self.log.overdue() if by_age and not patient else None
        if kept is not None:
            return kept
        for waiter in self.waits.all():
            if 0 < waiter.deadline_ms <= self.state.steady_ms:
                return f"the wait of client {waiter.client.number} is over: {waiter}"
            for number, key in waiter.keys:
                expiry_ms = self.data.expiries[number].get(key, now_ms + 1)
                stream = self.data.databases[number].get(key) if expiry_ms > now_ms else None
                late = waiter.lateness(stream) if isinstance(stream, Stream) else None
                if late is not None and not (patient and waiter.group is not None):
                    return f"client {waiter.client.number} waits and {late}: {waiter}"
        return None

    # ------------------------------------------------------------ requests

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
                self.waits.add(answer)
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
            if self.state.memory_full and needs_memory(request):
                raise Refused(OUT_OF_MEMORY)
            if not in_queue or name in NEVER_QUEUED:
                answer = self._perform(client, name, request)
                self._end_request(request)
                return answer
            if name in WRITES:
                self.check_writable(request)
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
        for waiter in sorted(self.waits.all(), key=lambda waiter: waiter.client.number):
            denied = users.refusal(rules, waiter.request) if waiter.client.is_limited else None
            if denied is not None:
                self.end_wait(waiter, Refused(denied))

    def _end_request(self, request: Request) -> None:
        """The next events belong to another request. The end of an EXEC has no event."""
        done = Done(request)
        if request[0] != b"EXEC" and done in self._events:
            while self._events.popleft() != done:
                pass

    def check_writable(self, request: Request) -> None:
        """Refuse a write if writes are refused, except one that only removes from a full disk."""
        if not (self.state.may_remove and only_removes(request)):
            self.state.check_writable()

    def _perform(self, client: ClientModel, name: str, request: Request) -> Answer:
        if name in WRITES:
            self.check_writable(request)
        return HANDLERS[name](self, client, request)

    def _answer(
        self,
        client: ClientModel,
        request: Request,
        answer: Answer,
        queued: list[Request] | None = None,
    ) -> None:
        due = Due(request, answer, self.state.now_ms, queued=queued or [])
        client.due.append(due)
        self.untagged.append(due)

    # ------------------------------------------------------------ waits

    def timeout(self, waiter: Waiter) -> None:
        self.end_wait(waiter, waiter.timeout_answer())

    def end_wait(self, waiter: Waiter, answer: Answer) -> None:
        self._remove(waiter)
        self._answer(waiter.client, waiter.request, answer)
        self._resumable.append(waiter.client)

    def _remove(self, waiter: Waiter) -> None:
        """End a wait; the time to live of its group restarts."""
        self.waits.remove(waiter)
        if waiter.group is not None:
            self.values.touch_groups(waiter.keys, waiter.group)

    def _serve_ready(self) -> None:
        while ready := self.waits.take_ready():
            self.remade.clear()
            for key in ready:
                self._serve(key)

    def _serve(self, key: Key) -> None:
        empty_handed: set[object] = set()
        for waiter in self.waits.at(key):
            if waiter.kind in empty_handed:
                continue
            try:
                answer = waiter.attempt()
            except Refused as refusal:
                answer = refusal
            if answer is not None:
                self.end_wait(waiter, answer)
            elif waiter.kind is not None:
                empty_handed.add(waiter.kind)
