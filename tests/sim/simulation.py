"""Plays one seed: a sequence of random events, over several runs of a server on one disk.

After each event the clients' replies are compared with the model's. When the server is idle, no due
change may be open, and the state must equal the model's. After a crash the state must be that of
exactly the frames that survived, which must include all frames of which a client has seen data.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import hashlib
import logging
import random
from collections import deque
from collections.abc import Callable

from tests.sim import users
from tests.sim.data import Data, EntryId, difference, found_in, seen_in, shown, without
from tests.sim.memory import judge_bytes
from tests.sim.model import Model
from tests.sim.model.answers import ANY, OUT_OF_MEMORY, Answer, Judged, encoded, parse_id
from tests.sim.model.clients import Due, Key, Request
from tests.sim.model.pages import ids_of
from tests.sim.players import SCHEDULERS, WORKERS, Player, Profile, read_by_consumer
from tests.sim.promises import BrokenPromise, demand
from tests.sim.replay import Replay, effects_of
from tests.sim.world import Faults, SimClient, World
from tests.support.fakedisk import Crashed, FakeDisk
from tests.support.history import History
from tests.support.resp import Error, Reply, Simple, read_reply

from millstream.errors import CommandError, DataError
from millstream.server.repair.checking import Checker
from millstream.storage.blocks.lazyfree import TO_FREE, defer
from millstream.storage.files.manifest import NAME as MANIFEST
from millstream.storage.files.manifest import load_manifest
from millstream.storage.files.snapshot_reader import SnapshotReader

FIRST_MS = 1_700_000_000_000
STEPS = 400
USER_SEEDS = 5  # one seed of these has a restricted user
WORKER_SEEDS = 7  # one seed of these has clients that use managed groups
SCHEDULER_SEEDS = 7  # one seed of these has clients that schedule entries
SETTLE_MAX = 20_000
TRACE_LINES = 60
REFUSED_AGAIN_MS = 1000  # a retry that fell due while writes were refused is retried after this
RECOVERY_S_MAX = 200
FREED_MS_MAX = 1000
NODES_MAX = 4  # of a block
SLICE_KEYS = 64  # captured at once
QUEUED = Simple("QUEUED")
SHOW_NO_DATA = {b"PING", b"ECHO", b"TIME", b"SELECT", b"CONFIG", b"AUTH", b"ACL"}
REFUSALS = (
    "ERR unknown command",
    "ERR wrong number of arguments",
    "ERR Command not allowed inside a transaction",
    "MISCONF ",
    "OOM ",
    "NOPERM ",
    "EXECABORT Transaction discarded because of: NOPERM ",
)
"""Errors of requests that were not run."""


class SimulationFailure(AssertionError):
    """A seed that shows a broken promise; prints the command that replays it."""


class Simulation:
    def __init__(self, seed: int, steps: int = STEPS, profile: Profile | None = None) -> None:
        self.seed = seed
        self.steps = steps
        self.chance = random.Random(seed)
        self.profile = profile or Profile.drawn(self.chance)
        if profile is None and self.profile.disk_is_slow and seed % 2:
            self._let_requests_wait()
        self.trace: deque[str] = deque(maxlen=TRACE_LINES)
        self.counts: dict[str, int] = {}
        self.effects: set[bytes] = set()  # names of those that were recorded
        # A separate random generator, so that other seeds keep their plays.
        if profile is None and seed % WORKER_SEEDS == 5:
            self.profile.roles = WORKERS
        if profile is None and seed % SCHEDULER_SEEDS == 2:
            self.profile.roles = SCHEDULERS
        has_users = profile is None and seed % USER_SEEDS == 3
        self._user_chance = random.Random(~seed) if has_users else None
        self._digest = hashlib.blake2b(digest_size=8)
        self._client_number = 0
        self._crash_soon = False
        self._faults = Faults()
        self._seen_appends: set[tuple[int, bytes, EntryId]] = set()
        self._seen_acks: list[tuple[Key, bytes, EntryId, int]] = []
        self._history = History(
            not self.profile.clock_jumps,
            checks_strings=False,
            keeps_producers=self.profile.producers_max > 100,
        )
        self._seen_seq = self._first_seq = 0
        self._refused_ms = 0
        self._wall_ms = FIRST_MS
        self._disk = FakeDisk(seed)
        self._before = Data(producers_max=self.profile.producers_max)
        self.world: World
        self.model: Model

    # ------------------------------------------------------------ the play

    def run(self) -> str:
        """Play; returns the trace's hash. SimulationFailure when a promise is broken."""
        # The bytes of what other plays have left would count until some later moment. The rest is
        # not looked at again: that makes the next time cheap.
        gc.collect()
        gc.freeze()
        logger = logging.getLogger("millstream")
        logger.addHandler(self._faults)
        was, logger.propagate = logger.propagate, False
        try:
            self._begin_life()
            if self.profile.keys > SLICE_KEYS:
                self._fill()
            if self.profile.heaps:
                self._pile_up()
            for _ in range(self.steps):
                self._step()
            self._restart()
        except Exception as problem:
            raise SimulationFailure(self._story(problem)) from problem
        finally:
            self.world.abandon()
            defer(False)
            logger.removeHandler(self._faults)
            logger.propagate = was
        return self._digest.hexdigest()

    def _let_requests_wait(self) -> None:
        """Little may wait for the disk. Chosen without chance, so that other seeds play on as they
        did. The end of a transaction is not reported to it, so none is made."""
        self.profile.queue_bytes = (1, 200, 2000)[self.seed // 2 % 3]
        self.profile.transactions = 0
        left_out = ("watcher", "pairer", "counter")
        roles = [role for role in self.profile.roles.split() if role not in left_out]
        self.profile.roles = " ".join(roles)

    def _fill(self) -> None:
        """Enough keys that a snapshot takes several slices, with changes between them."""
        client = self._idle_client()
        if client is None:
            return
        self._note("fill", f"client {client.id}")
        for number in range(self.profile.keys):
            client.ask((b"TAPPEND", b"s%d" % number, b"n", b"0"))
            client.ask((b"SET", b"k%d" % number, b"0"))
        self._feed(client, *client.take(len(client.unsent)))

    def _flush(self) -> None:
        """Remove data that a running snapshot still has to read."""
        client = self._idle_client()
        if client is not None:
            client.ask((self.chance.choice([b"FLUSHDB", b"FLUSHALL"]),))
            self._note("flush", f"client {client.id}")
            self._feed(client, *client.take(len(client.unsent)))

    def _idle_client(self) -> SimClient | None:
        """A client that may also send requests outside its role."""
        for client in self.world.clients.values():
            is_busy = client.unsent or client.model.due or client.model.queue is not None
            if not is_busy and client.player.role != "scanner":
                return client
        return None

    def _pile_up(self) -> None:
        """A stream of enough blocks that it is freed in turns, to be copied."""
        client = next(iter(self.world.clients.values()))
        for request in client.player.pile():
            client.ask(request)
        self._feed(client, *client.take(len(client.unsent)))

    def _story(self, problem: Exception) -> str:
        lines = "\n  ".join(self.trace)
        return (
            f"{type(problem).__name__}: {problem}\nprofile: {self.profile}\nlast events:\n"
            f"  {lines}\nplay it again: python -m tests.sim {self.seed} --steps {self.steps}"
        )

    def _note(self, kind: str, text: str = "") -> None:
        line = f"{self.world.loop.time_ms:>6} {kind} {text}"
        self.trace.append(line)
        self._count(kind)
        self._digest.update(line.encode() + b"\n")

    def _count(self, kind: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def _step(self) -> None:
        event = self._choose()
        try:
            event()
        except Crashed:
            self._crash("in the middle of a step")
            return
        self._look()

    def _choose(self) -> Callable[[], None]:
        world, chance = self.world, self.chance
        choices: list[tuple[float, Callable[[], None]]] = [
            (8, self._pass_time),
            (1.5, self._settle),
            (0.3, self._restart),
            (1, self._change_clients),
        ]
        if any(self._can_send(client) for client in world.clients.values()):
            choices.append((30, self._send))
        if world.loop.has_work():
            choices.append((30, self._run_loop))
        if any(worker.tasks for worker in world.workers):
            choices.append((3 if self.profile.disk_is_slow else 25, self._run_worker))
        if self.profile.crashes:
            choices += [(0.5, self._crash_now), (0.5, self._kill), (0.5, self._arm_crash)]
            choices.append((0.3, self._flip))
        if self.profile.disk_fails:
            choices.append((1, self._break_or_mend_disk))
        if self.profile.disk_fills:
            choices.append((1.5, self._fill_or_free_disk))
        if self.profile.keys > SLICE_KEYS:
            choices.append((1.5, self._rewrite))
            if world.keyspace.capture is not None:
                choices.append((3, self._flush))
            elif sum(map(len, world.keyspace.databases)) < SLICE_KEYS:
                choices.append((3, self._fill))
        if self.profile.bulky:
            choices.append((5, self._stop_or_go_on_taking))
        if self.profile.clock_jumps:
            choices.append((1, self._jump))
        if self.profile.memory:
            choices.append((2, self._limit_memory))
        events = [event for _, event in choices]
        return chance.choices(events, [weight for weight, _ in choices])[0]

    # ------------------------------------------------------------ events

    def _can_send(self, client: SimClient) -> bool:
        if client.player.role == "scanner":
            # Its replies come in slices, between which the server stops: their number is unknown.
            # So the client sends nothing until its earlier requests have run: after a wait for the
            # disk, they run only at the end of the tick.
            is_busy = client.is_stopped() or client.model.requests
            return not is_busy and (bool(client.unsent) or not client.model.due)
        return bool(client.unsent) or len(client.model.due) < self.profile.pipeline

    def _send(self) -> None:
        able = [c for c in self.world.clients.values() if self._can_send(c)]
        client = self.chance.choice(able)
        if not client.unsent:
            for request in client.player.next_requests():
                client.ask(request)
        size = len(client.unsent)
        if self.chance.random() < (0.5 if client.player.role == "scanner" else 0.1):
            size = self.chance.randint(1, size)
        data, whole = client.take(size)
        requests = ", ".join(map(_words, whole))
        self._note("send", f"client {client.id}: {len(data)} bytes, {requests or 'no whole one'}")
        self._feed(client, data, whole)

    def _feed(self, client: SimClient, data: bytes, whole: list[Request]) -> None:
        self.world.events.clear()
        for words in whole:
            client.asked[id(words)] = words, self._history.ask(0, words, self.world.now_ms())
        self.world.executor.feed(client, data)
        self.model.feed(client.model, whole, self.world.now_ms())
        self._end_ticks()

    def _run_loop(self) -> None:
        timer = self.world.loop.take()
        if timer is None:
            return
        name = getattr(timer.callback, "__name__", "?")
        self._note("loop", name)
        self.world.events.clear()
        self.world.served.clear()
        timer.callback(*timer.args)
        if name == "free_released":
            self._count("freed in part" if TO_FREE else "freed")
        elif name == "run_due":
            self.model.timer(
                self.world.now_ms(),
                self.world.served,
                self._has_group,
                self._oldest,
            )
        elif name == "_after_publish":
            self._judge_base()
        elif name in ("check_memory", "limit_memory"):
            self.model.look_for_memory(self.world.now_ms())
        self._end_ticks()

    def _end_ticks(self) -> None:
        """Pass the ticks that ended in this event to the model."""
        for full in self.world.ticks:
            self.model.end_tick(self.world.now_ms(), self.world.persistence.commits.last_seq, full)
        self.world.ticks.clear()
        self.model.take_rest()

    def _journal_failed(self) -> None:
        """Changes of the tick under way are in no frame."""
        for due in self.model.untagged:
            due.is_unknown = True
            self._count("unknown")

    def _has_group(self, key: Key, name: bytes) -> bool:
        stream = self.world.keyspace.databases[key[0]].stream(key[1])
        return stream is not None and stream.group(name) is not None

    def _oldest(self, key: Key) -> EntryId | None:
        stream = self.world.keyspace.databases[key[0]].stream(key[1])
        return None if stream is None else stream.first_id

    def _run_worker(self) -> None:
        busy = [worker for worker in self.world.workers if worker.tasks]
        worker = self.chance.choice(busy)
        self._note("worker", worker.name)
        worker.run_one()

    def _pass_time(self) -> None:
        roll = self.chance.random()
        loop = self.world.loop
        next_ms = loop.next_timer_ms()
        if roll < 0.5:
            passed_ms = self.chance.choice([1, 1, 2, 5, 10, 30])
        elif roll < 0.9 and next_ms is not None:
            passed_ms = max(0, next_ms - loop.time_ms)
        else:
            passed_ms = self.chance.randint(50, 1500)
        loop.time_ms += passed_ms
        self._note("time", f"{passed_ms} ms")

    def _jump(self) -> None:
        hour_ms = 3_600_000
        jumps_ms = [-hour_ms, -1000, -10, -1, 10, 5000, hour_ms, 24 * hour_ms]
        self.world.wall_ms += self.chance.choice(jumps_ms)
        self._note("clock jumps", str(self.world.now_ms()))

    def _change_clients(self) -> None:
        clients = self.world.clients
        if clients and (len(clients) >= self.profile.clients or self.chance.random() < 0.4):
            client = self.chance.choice(list(clients.values()))
            self._note("leave", f"client {client.id}")
            self._lose(client)
        else:
            self._add_client()

    def _lose(self, client: SimClient) -> None:
        self.world.executor.detach(client)
        self.world.access.forget(client)
        self.model.leave(client.model, self.world.now_ms())
        del self.world.clients[client.id]

    def _add_client(self) -> None:
        self._client_number += 1
        clients = self.world.clients
        player = Player(self.chance, self.profile, self.world.now_ms, lambda: list(clients))
        resp = self.chance.choice([2, 2, 3])
        client = SimClient(self.world, player, self._client_number, resp)
        self.world.executor.attach(client)
        self.world.access.log_in_default(client)
        self.world.clients[client.id] = client
        if self._user_chance is not None:
            self._choose_user(client, self._user_chance)
        if self.chance.random() < 0.3 and self.profile.databases > 1:
            client.ask((b"SELECT", b"%d" % self.chance.randrange(self.profile.databases)))
        self._note("join", f"client {client.id}, a {player.role}")

    def _choose_user(self, client: SimClient, chance: random.Random) -> None:
        """Log in as the restricted user, or change the rules of that user."""
        if client.player.role not in users.UNFIT and chance.random() < 0.5:
            client.ask(users.LOGIN)
        elif chance.random() < 0.5:
            client.player.ruler = chance

    def _stop_or_go_on_taking(self) -> None:
        """A client stops reading, or reads again."""
        scanners = [c for c in self.world.clients.values() if c.player.role == "scanner"]
        if scanners:
            client = self.chance.choice(scanners)
            self._note("reads again" if client.paused else "stops reading", f"client {client.id}")
            if client.paused:
                self._take_again(client)
            else:
                client.paused = True

    def _take_again(self, client: SimClient) -> None:
        client.paused = False
        was_full = client.full
        self.world.executor.outbox.on_writable(client)
        if was_full and not client.full:
            self.model.resume(client.model)

    def _rewrite(self) -> None:
        """The automatic rewrite when the journal has grown."""
        self._note("rewrite")
        with contextlib.suppress(CommandError):
            self.world.persistence.snapshots.rewrite()

    def _break_or_mend_disk(self) -> None:
        if self._disk.failures:
            self._disk.mend()
            self._note("disk", "works")
            return
        operation = self.chance.choice(
            ["write", "sync", "create", "rename", "reserve", "sync_directory", "remove", "truncate"]
        )
        number = self.chance.choice([errno.EIO, errno.ENOSPC])
        name = self.chance.choice(["", "journal", "base"])
        times = self.chance.choice([None, 1, 2])
        self._disk.fail(operation, number, name, times)
        self._note("disk", f"{operation} of {name!r} fails with {number}, {times} times")

    def _fill_or_free_disk(self) -> None:
        """Fill the disk except for a little space, or free it."""
        disk = self._disk
        if disk.capacity is not None:
            disk.mend()
            self._note("disk", "has space")
            return
        left_bytes = self.chance.choice([0, 100, 5000, 70_000])
        disk.capacity = disk.used_bytes() + left_bytes
        self._note("disk", f"is full except for {left_bytes} bytes")

    def _limit_memory(self) -> None:
        """Set the memory limit close to used memory, or remove it."""
        memory = self.world.memory
        part = self.chance.choice([0, 0, 0.5, 0.9, 1, 1.2, 2])
        limit_bytes = int(memory.held_at(part)) if part else 0
        evicts = self.profile.memory == "evicts" or self.chance.random() < 0.2
        self._note("limit", f"{limit_bytes} of {memory.held()} bytes, evicts: {evicts}")
        self.world.limit_memory(limit_bytes, evicts)

    # ------------------------------------------------------------ the idle server

    def _settle(self) -> None:
        """Run everything that can run now: afterwards no due change may be open."""
        self._note("settle")
        for client in self.world.clients.values():
            if client.paused:
                self._take_again(client)
        for _ in range(SETTLE_MAX):
            if self.world.loop.has_work():
                self._run_loop()
            elif any(worker.tasks for worker in self.world.workers):
                self._run_worker()
            else:
                break
            self._look()
        else:
            raise BrokenPromise("the server does not come to rest")
        self._check_quiet()

    def _check_quiet(self) -> None:
        for client in self.world.clients.values():
            if client.model.due and not client.ended:
                raise BrokenPromise(f"client {client.id} is not answered: {client.model.due}")
        demand(
            self.world.executor.blocked_count == self.model.waits.count,
            f"{self.world.executor.blocked_count} wait and not {self.model.waits.count}",
        )
        demand(not self.world.eviction.goes_on, "more is to be dropped, but eviction has stopped")
        now_ms = self.world.now_ms()
        patient = self.world.steady_ms() - self._refused_ms <= REFUSED_AGAIN_MS
        undone = self.model.overdue(now_ms, patient, not self.profile.clock_jumps)
        demand(undone is None, str(undone))
        if self.profile.clock_jumps:
            return
        if self.chance.random() < 0.3:
            self.model.upkeep(now_ms)
            self._same(shown(self.model.data), "the model's")

    def _same(self, expected: object, whose: str, *leave_out: str) -> None:
        found = difference(
            without(
                seen_in(self.world.keyspace, self.world.now_ms()),
                "incarnation",
                "entries read",
                *leave_out,
            ),
            without(expected, "incarnation", "entries read", *leave_out),
        )
        demand(found is None, f"the state is not {whose}: {found}")

    # ------------------------------------------------------------ checks

    def _look(self) -> None:
        """After an event: check that the received replies equal the model's and that no error
        occurred."""
        world = self.world
        demand(not world.broken, "; ".join(world.broken))
        demand(not self._faults.found, "\n".join(self._faults.found))
        if world.refuses_writes():
            self._refused_ms = world.steady_ms()
        for client in list(world.clients.values()):
            self._read(client)
            if client.ended:
                demand(world.journal_failed, f"client {client.id} is closed without a reason")
                self._note("closed", f"client {client.id}")
                self._lose(client)

    def _read(self, client: SimClient) -> None:
        received, client.received = client.received, []
        for data, safe_seq, counts in received:
            self._digest.update(data)
            client.unread += data
            at = 0
            while at < len(client.unread):
                size = self._match(client, at, safe_seq, counts)
                if size == 0:
                    break
                at += size
            client.unread = client.unread[at:]

    def _match(self, client: SimClient, at: int, safe_seq: int, counts: bool) -> int:
        """Compare the reply at `at`; return its size, 0 while it is incomplete."""
        if not client.model.due:
            raise BrokenPromise(f"client {client.id} did not ask for {client.unread[at:]!r}")
        due = client.model.due[0]
        if due.is_known:
            wanted = encoded(due.answer, client.model.resp)
            if not client.unread.startswith(wanted, at):
                if wanted.startswith(client.unread[at:]):
                    return 0
                raise BrokenPromise(
                    f"client {client.id} asked {_words(due.request)} and got\n"
                    f"{client.unread[at : at + 2000]!r}, not\n{wanted[:2000]!r}"
                )
        try:
            reply, end = read_reply(client.unread, at)
        except EOFError:
            return 0
        raw = client.unread[at:end]
        if not due.is_known:
            self._judge(client, due, raw, reply)
        client.model.due.popleft()
        if due.seq is None:
            raise BrokenPromise(f"client {client.id} got {raw!r} before the end of the tick")
        shows_data = _shows_data(due.request, reply)
        if shows_data and due.seq > safe_seq:
            raise BrokenPromise(
                f"client {client.id} got {raw!r}, which needs frame {due.seq}; safe are {safe_seq}"
            )
        if shows_data and due.is_unknown:
            raise BrokenPromise(
                f"client {client.id} got {raw!r} for {_words(due.request)}, and no frame has it"
            )
        if due.seq > safe_seq:
            self._count("did not wait")
        if reply == Error(OUT_OF_MEMORY):
            self._count("no memory")
        if isinstance(reply, Error) and reply.text.startswith("NOPERM"):
            self._count("no key" if reply.text == users.NO_KEY else "no command")
        if isinstance(reply, list):
            rules_changed = [one for one in reply if isinstance(one, Error)]
            if any(one.text.startswith(users.CHANGED) for one in rules_changed):
                self._count("rules changed before EXEC")
        parts = [(due.request, reply)]
        if due.queued and isinstance(reply, list):
            parts = list(zip(due.queued, reply, strict=True))
        for request, part in parts:
            if counts:
                if shows_data:
                    self._seen_seq = max(self._seen_seq, due.seq)
                self._note_answer(client, request, part)
                self._remember(client.model.db, request, part, due.now_ms)
            client.player.learn(request, part)
        return len(raw)

    def _judge(self, client: SimClient, due: Due, raw: bytes, reply: Reply) -> None:
        """Compare a reply that is not predicted as a whole, part by part."""
        parts: list[tuple[Request, Answer, bytes, Reply]] = []
        if due.queued and isinstance(due.answer, list):
            demand(isinstance(reply, list), f"client {client.id} got {raw!r} of EXEC")
            at = raw.index(b"\n") + 1
            for request, answer in zip(due.queued, due.answer, strict=True):
                part, end = read_reply(raw, at)
                parts.append((request, answer, raw[at:end], part))
                at = end
        else:
            parts.append((due.request, due.answer, raw, reply))
        for request, answer, data, part in parts:
            if isinstance(answer, Judged):
                answer.judge(part)
                self._count("judged")
            elif answer is not ANY:
                wanted = encoded(answer, client.model.resp)
                demand(data == wanted, f"client {client.id} asked {_words(request)} in a "
                       f"transaction and got\n{data[:2000]!r}, not\n{wanted[:2000]!r}")  # fmt: skip

    def _note_answer(self, client: SimClient, request: Request, reply: Reply) -> None:
        """Record a reply in the history, which has one database and treats queued requests as
        sent."""
        if self._keeps_history and reply != QUEUED:
            asked = client.asked.pop(id(request), None)
            if asked is not None:  # the same MULTI may be sent twice
                self._history.answer(asked[1], reply, self.world.now_ms())

    @property
    def _keeps_history(self) -> bool:
        """True if the history applies: it has one database, and no evictions for lack of memory."""
        return self.profile.databases == 1 and not self.profile.memory

    def _remember(self, db: int, request: Request, reply: Reply, now_ms: int) -> None:
        """Record the data in this reply, which must survive every crash."""
        name = request[0]
        if b"IDMP" in request and self.profile.renames:
            return  # a copy has messages whose entries were removed before
        if name in (b"TAPPEND", b"TAPPENDONCE", b"XADD") and isinstance(reply, bytes):
            self._seen_appends.add((db, request[1], parse_id(reply)))
        elif name in (b"TREAD", b"TRANGE") and isinstance(reply, list):
            start = 1 if b"WITHINFO" in request else 0
            for entry in reply[start:]:
                if isinstance(entry, list) and isinstance(entry[0], bytes):
                    self._seen_appends.add((db, request[1], parse_id(entry[0])))
        elif name == b"TBLOCKS":
            self._seen_appends |= {(db, request[1], entry_id) for entry_id in ids_of(reply)}
        elif name == b"XREADGROUP":
            shown = read_by_consumer(reply)
            self._seen_appends |= {(db, key, parse_id(text)) for key, text in shown}
        elif name in (b"TACK", b"XACK") and reply == len(request) - 3 and not self.profile.renames:
            # With renames an entry with the same ID may be pending in another stream's group.
            key = db, request[1]
            self._seen_acks += [(key, request[2], parse_id(i), now_ms) for i in request[3:]]

    # ------------------------------------------------------------ restarts

    def _begin_life(self) -> None:
        self._wall_ms += self.chance.choice([0, 1, 10, 1000])
        self._disk.locked = False
        self.world = World(self._disk, self.profile, self.chance, self._wall_ms, self._before)
        self.world.start()
        self._begin_life_of(self.world)

    def _restart(self) -> None:
        """A clean stop loses nothing."""
        self._disk.mend()
        self._disk.crash_at = None
        self._note("restart")
        self._settle()
        for _ in range(RECOVERY_S_MAX):
            if not self.world.refuses_writes():
                break
            self.world.loop.time_ms += 1000
            self._settle()
        else:
            raise BrokenPromise("the disk works again and writes are still refused")
        self._free()
        self.world.events.clear()
        self.world.stop()
        self._end_ticks()
        self._look()
        before = seen_in(self.world.keyspace)
        last_seq = self.world.persistence.commits.last_seq
        self._next_life(self._disk, last_seq)
        found = difference(before, self._loaded)
        demand(found is None, f"a clean restart changed {found}")

    def _free(self) -> None:
        """Check that released data is freed soon."""
        for _ in range(FREED_MS_MAX):
            if not TO_FREE:
                break
            self.world.loop.time_ms += 1
            self._settle()
        else:
            raise BrokenPromise("released data is not freed")
        judge_bytes(self.world.keyspace, self.world.memory)

    def _crash_now(self) -> None:
        self._crash("between two steps")

    def _crash(self, when: str) -> None:
        """The power fails."""
        self._note("crash", when)
        least = self.world.durable.look()
        shown_seq = self._seen_seq
        while self._seen_seq > least and self.world.need_not_be_synced(self._seen_seq):
            self._seen_seq -= 1
        if self._seen_seq < shown_seq:
            self._count("frames of groups not synced")
            self._seen_acks.clear()
        disk = self._disk.after_crash(self.chance.randrange(2**32))
        self._next_life(disk, least)

    def _kill(self) -> None:
        """The process dies but the machine does not: all written bytes exist."""
        self._note("kill")
        disk = self._disk.copy()
        disk.chance = self._disk.chance
        self._next_life(disk, self.world.durable.look())

    def _flip(self) -> None:
        """Change a bit of a copy of the disk: a start refuses it, or loads no data that was never
        written."""
        disk = self._disk.copy()
        name = self.chance.choice(disk.names())
        data = bytearray(disk.content(name))
        if not data:
            return
        place = self.chance.randrange(len(data))
        data[place] ^= 1 << self.chance.randrange(8)
        disk.put(name, bytes(data))
        self._note("flip", f"{name} at {place} of {len(data)}")
        defer(False)
        probe = World(disk, self.profile, self.chance, self.world.now_ms(), self._before)
        try:
            probe.start()
        except DataError:
            self._note("refused")
        else:
            self._judge_flipped(probe)
        finally:
            probe.abandon()
            defer(True)

    def _judge_flipped(self, probe: World) -> None:
        survived = probe.persistence.commits.last_seq
        least = max(self.world.durable.look(), self._seen_seq)
        demand(survived >= least, f"frame {least} was safe, {survived} is the last one read")
        data = self._before.copy()
        self._rebuild(data, self.world.frames, survived)
        found = difference(seen_in(probe.keyspace), shown(data))
        demand(found is None, f"a flipped bit changed what was read: {found}")

    def _judge_base(self) -> None:
        """Check that a snapshot has the data at its frame, regardless of changes while it was
        written."""
        disk = self._disk.copy()
        manifest = load_manifest(disk)
        if manifest is None or manifest.base is None:
            return
        seq = SnapshotReader(disk.read(manifest.base)).summary.seq
        if seq < self._first_seq or self.chance.random() < 0.5:
            return
        disk.put(MANIFEST, manifest._replace(journals=()).to_bytes())
        for name in manifest.journals:
            disk.remove(name)
        report = Checker(disk, self.world.now_ms(), lambda done, total: None).run(load=False)
        base = next(file for file in report.files if file.name == manifest.base)
        demand(base.state == "ok", f"a check finds damage in a snapshot: {base}")
        defer(False)
        probe = World(disk, self.profile, self.chance, self.world.now_ms(), self._before)
        try:
            probe.start()
            data = self._before.copy()
            self._rebuild(data, self.world.frames, seq)
            found = difference(seen_in(probe.keyspace), shown(data))
            demand(found is None, f"{manifest.base} is not as the data was at {seq}: {found}")
        finally:
            probe.abandon()
            defer(True)

    def _arm_crash(self) -> None:
        """The power will fail in the middle of one of the next operations on the disk."""
        self._note("arm")
        self._disk.crash_at = self._disk.steps + self.chance.randint(1, 12)

    def _next_life(self, disk: FakeDisk, least: int) -> None:
        old = self.world
        self._wall_ms = old.now_ms()
        self._disk = disk
        if old.eviction.evicted_entries:
            self._count("dropped")
        if old.releases:
            self._count("waited for the disk")
        old.abandon()
        defer(False)
        judge_bytes(old.keyspace, old.memory)
        probe = World(disk, self.profile, self.chance, self._wall_ms, self._before)
        disk.locked = False
        probe.start()
        survived = probe.persistence.commits.last_seq
        self._note(
            "survived", f"{survived} of {old.persistence.commits.last_seq}, seen {self._seen_seq}"
        )
        demand(survived >= least, f"frame {least} was on the disk, {survived} is the last one")
        demand(survived >= self._seen_seq, f"frame {self._seen_seq} was seen, {survived} is left")
        names = (words[0] for payload in old.frames.values() for words in effects_of(payload))
        self.effects.update(names)
        self._rebuild(self._before, old.frames, survived)
        self._loaded = seen_in(probe.keyspace)
        found = difference(self._loaded, shown(self._before))
        demand(found is None, f"after loading, the state is not that of the frames: {found}")
        self._check_seen()
        if self._keeps_history:
            self._history.check(found_in(self._before))
        disk.locked = False
        self._begin_life_of(probe)

    def _begin_life_of(self, world: World) -> None:
        defer(True)
        self._first_seq = world.persistence.commits.last_seq
        world.replay = Replay(self._before.copy())
        world.ticks.clear()
        self.world = world
        block_entries = NODES_MAX * self.profile.node_entries
        self.model = Model(
            self._before.copy(),
            world.now_ms(),
            world.events,
            block_entries,
            lambda: world.steady_start_ms - world.wall_ms,
        )
        world.on_unknown = self._journal_failed
        if self._user_chance is not None:
            rules = users.new_rules(self._user_chance)
            self.model.rules = users.parsed(rules)
            world.set_rules(rules)
        for _ in range(self.profile.clients):
            self._add_client()

    @staticmethod
    def _rebuild(data: Data, frames: dict[int, bytes], survived: int) -> None:
        """Apply exactly the frames that survived to the data before this run of the server."""
        replay = Replay(data)
        for seq in sorted(frames):
            if seq <= survived:
                replay.apply(frames[seq])

    def _check_seen(self) -> None:
        data = self._before
        lost = self._seen_appends - data.ever
        demand(not lost, f"seen by a client and lost: {sorted(lost)}")
        # If the clock goes back, an acknowledged delivery cannot be distinguished from a later one.
        seen_acks = [] if self.profile.clock_jumps else self._seen_acks
        for (db, key), name, entry_id, now_ms in seen_acks:
            stream = data.databases[db].get(key)
            group = getattr(stream, "groups", {}).get(name)
            record = None if group is None else group.pending.get(entry_id)
            demand(
                record is None or record.first_ms >= now_ms,
                f"{entry_id} of {name!r} was acknowledged and is pending: {record}",
            )
        self._seen_appends.clear()
        self._seen_acks.clear()


def _shows_data(request: Request, reply: Reply) -> bool:
    """True if the reply must wait until the journal has all earlier commands."""
    if isinstance(reply, Error):
        return not reply.text.startswith(REFUSALS)
    return reply != QUEUED and request[0].upper() not in SHOW_NO_DATA


def _words(request: Request) -> str:
    """A request for the trace, with long words cut."""
    words = [word.decode("latin-1") for word in request]
    return " ".join(repr(w[:9] + ".." if len(w) > 40 else w)[1:-1] or '""' for w in words)


def play(seed: int, steps: int = STEPS) -> str:
    """Play one seed; return its trace's hash."""
    return Simulation(seed, steps).run()
