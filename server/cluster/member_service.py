"""A member of a shard in a server: carries out what its state machine orders (`membership`).

It keeps up with the store, keeps the lease, asks other members for promises, and gives the
replication of this server its orders. All of it runs in the loop of the server. The time is that of
the machine since its start, which no clock change moves, with the time for which the machine was
suspended: leases end meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from millstream.commands.admin.cluster_peers import LastFrame, PromiseRequest, Reason
from millstream.errors import CommandError
from millstream.server.cluster.cluster_secret import ClusterSecret
from millstream.server.cluster.cluster_view import ClusterView, view_of
from millstream.server.cluster.enrollment import Enrollment
from millstream.server.cluster.member_actions import (
    Action,
    AskPromise,
    AskReturn,
    Follow,
    GetLease,
    KeepLease,
    Lead,
    Purpose,
    ReadAgain,
    Rest,
    Write,
    needs_disk,
)
from millstream.server.cluster.member_handover import MemberHandover
from millstream.server.cluster.member_lease import MemberLease
from millstream.server.cluster.membership import Member
from millstream.server.cluster.promise_request import Asker
from millstream.server.cluster.recollection import describe
from millstream.server.cluster.seen_keeping import SeenKeeping
from millstream.server.cluster.slot_moves.move_rules import ENDED, gains_slots, may_keep_later
from millstream.server.cluster.store.records import SECRET, NodeRecord, RecordError
from millstream.server.cluster.store.seen_store import SeenStore
from millstream.server.cluster.store.store import (
    Change,
    Compare,
    Contents,
    LeaseEnded,
    Refused,
    Store,
    Unreachable,
    reason_of,
)
from millstream.server.cluster.store.store_follower import StoreFollower
from millstream.server.replication.terms import Terms

log = logging.getLogger("millstream.cluster")

LOOK_S = 0.05
CALM_MS = 250
GIVE_BACK_S = 2.0
AGAIN_S = 1.0  # after an unexpected error
BEATS = 5  # of the primary within the node timeout
STORED_S = 0.005  # between two looks whether the own promise is on the disk
WAITING = "TRYAGAIN this primary waits until the candidate has all frames"
PROMISE_S = 2.0  # until the own promise has to be there
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady_ms() -> int:
    """The time since the start of the machine."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000


def is_calm(member: Member, now_ms: int) -> bool:
    """True if a node is the primary, and nothing is due within CALM_MS."""
    view = member.view
    is_changing = view is None or member.shard in view.changes or _has_moves(member, view)
    is_busy = is_changing or member.candidate.has_election or member.writing is not None
    has_time = not member.needs_lease or now_ms + 2 * CALM_MS < member.held_until_ms()
    return member.is_leading and not is_busy and has_time


def _has_moves(member: Member, view: ClusterView) -> bool:
    """True if slots move, or the data of this node has something of a move that has ended. The
    records of those stay in the store."""
    data = None if member.moves is None else member.moves.data
    has_rest = data is not None and bool(data.imports or data.departures)
    return has_rest or any(found.record.step not in ENDED for found in view.moves.values())


class MemberData:
    """The data of this server, as the state machine needs it."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    @property
    def promised(self) -> int:
        return self._terms.promised

    def standing(self) -> LastFrame | None:
        try:
            return self._terms.standing()
        except CommandError:
            return None

    def silence_ms(self) -> int | None:
        return self._terms.silence_ms()

    def confirming_members(self) -> int:
        return self._terms.confirming_members()

    def acknowledged_frame(self, node: str) -> int:
        return self._terms.acknowledged_frame(node)


class MemberSettings(NamedTuple):
    """The address of this node, the name of the shard to join (or auto), and the directives
    cluster-lease, cluster-node-timeout and tls-replication."""

    record: NodeRecord
    shard: str
    lease_s: int
    node_timeout_ms: int
    uses_tls: bool


class MemberService:
    """`on_change` is called when the contents of the store or the part of this node may have
    changed, also while `is_writing`; `on_contents` with what the store has."""

    def __init__(
        self,
        node: str,
        terms: Terms,
        store: Store,
        asker: Asker,
        handover: MemberHandover,
        settings: MemberSettings,
        on_change: Callable[[], object],
        *,
        secret: ClusterSecret,
        seen: SeenStore,
    ) -> None:
        self.member = Member(
            node,
            MemberData(terms),
            MemberLease(settings.lease_s),
            settings.node_timeout_ms,
            uses_tls=settings.uses_tls,
        )
        self.enrollment = Enrollment(self.member, settings.record, settings.shard)
        self.etcd_errors = 0
        self._secret = secret
        self.on_contents: Callable[[Contents], object] = lambda contents: None
        self.terms = terms
        self._store = store
        self._asker = asker
        self._handover = handover
        self._seen = seen
        self._keeping = SeenKeeping(seen, self._spawn, self._note_written)
        self._contents: Contents | None = None  # that are written now, and used then
        self._following: Contents | None = None  # that have come meanwhile
        self._is_limited = False  # what is confirmed
        self._on_change = on_change
        self._follower = StoreFollower(store, self._note_followed, self._lose, self.member.note_gap)
        self._revision = 0
        self._reading = False
        self._read_again = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._problem = self._lost = self._refused = ""  # as the log has said

    @property
    def is_writing(self) -> bool:
        """True while the disk does not have what this node has seen and waits for."""
        return self._keeping.is_writing

    @property
    def may_serve(self) -> bool:
        """True if slots that a change of the store gives to this node may be served: it is on the
        disk, or nothing of that is confirmed before."""
        return self._is_limited or not self._keeping.is_writing

    # Life

    def start(self) -> None:
        """The data is loaded."""
        self._load_seen()
        self._spawn(self._follower.run())
        self._spawn(self._keep_looking())

    def _load_seen(self) -> None:
        contents = self._seen.load()
        if contents is not None:
            try:
                self.member.seen = view_of(contents)
            except RecordError as problem:
                log.error("what this node has seen in etcd is not used: %s", problem)

    def stop(self) -> None:
        """The server stops."""
        for task in list(self._tasks):
            task.cancel()
        self._keeping.stop()

    async def give_back(self) -> None:
        """The server has stopped: end the lease."""
        lease = self.member.lease.id
        if lease and self.member.is_reachable:
            try:
                async with asyncio.timeout(GIVE_BACK_S):
                    await self._store.revoke(lease)
            except (TimeoutError, Unreachable, Refused) as problem:
                log.warning("the lease of this node cannot be ended: %s", problem)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.critical("a task of the cluster has ended", exc_info=task.exception())

    async def _keep_looking(self) -> None:
        """Look again after an unexpected error, for example a lack of memory. A node that does not
        look takes no part, and still seems to run."""
        while True:
            try:
                await self._look_often()
            except Exception:
                log.critical("a look at the state of the shard has failed", exc_info=True)
                await asyncio.sleep(AGAIN_S)

    async def _look_often(self) -> None:
        between_s = min(1.0, self.member.node_timeout_ms / 1000 / BEATS)
        due_s = 0.0
        while True:
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + between_s
                self.terms.beat()
            self.look()
            rest_s = min(CALM_MS / 1000, due_s - time.monotonic())
            is_quiet = is_calm(self.member, steady_ms())
            await asyncio.sleep(max(rest_s, LOOK_S) if is_quiet else LOOK_S)

    def look(self) -> None:
        """Do what is due."""
        if not self._keeping.is_writing:
            self.member.look(steady_ms())
            self._react()

    def _react(self) -> None:
        """Carry out the orders of the state machine, after anything that may have caused some. They
        wait until the disk has what has caused them."""
        if self._keeping.is_writing:
            return
        self.enrollment.look()
        self._make_secret()
        actions = self.member.actions
        if any(map(needs_disk, actions)):
            self._keeping.hurry()
            if self._keeping.is_writing:
                return
        while actions:
            self._carry_out(actions.pop(0))
        self._extend_lease()
        self._report()
        self._on_change()
        self._handover.look()

    def _make_secret(self) -> None:
        """The first node makes the secret with which nodes log in at each other."""
        is_missing = self.member.view is not None and not self._secret.current()
        if is_missing and self.member.may_write:
            change = Change(SECRET, os.urandom(32).hex().encode())
            self.member.write(Purpose.SECRET, [Compare(SECRET, 0)], [change])

    def _report(self) -> None:
        problem = self.enrollment.problem
        if problem != self._problem:
            self._problem = problem
            if problem:
                log.error("this server cannot be a node of the cluster: %s", problem)

    def _extend_lease(self) -> None:
        """The lease decides until when replies may be sent, or, with N, reads be served."""
        self.terms.require_lease(self.member.needs_lease)
        if self.terms.is_leading:
            self.terms.extend_lease(self.member.held_until_ms())

    # The store

    def _note_followed(self, contents: Contents) -> None:
        """A watch may be late: only a read can say that the store was restored."""
        if contents.revision < self._revision:
            self._read()
        else:
            self._take(contents)

    def _take(self, contents: Contents) -> None:
        if contents.revision < self._revision:
            self.member.note_gap()
        self._revision = contents.revision
        if self._keeping.is_writing:
            self._following = contents
            return
        try:
            view = view_of(contents)
        except RecordError as problem:
            self._lose(problem)
            return
        secret = contents.values.get(SECRET)
        self._secret.take_stored(b"" if secret is None else secret.data)
        last_seq = self.terms.last_seq
        self.member.take(view, steady_ms())
        if not self.member.is_store_old:
            # Before this node leads, follows, or changes the members because of it.
            self._keep(view, contents, last_seq)
        self._react()

    def _keep(self, view: ClusterView, contents: Contents, last_seq: int) -> None:
        """Write changes before this node leads, follows, changes the members, or gives users other
        rights because of it. Slots that it gets are served at once, but no frame after `last_seq`
        is confirmed before."""
        member = self.member
        changed = self._seen.note(contents)
        if changed:
            led_shard = member.shard if member.is_leading else ""
            has_order = any(map(needs_disk, member.actions))
            if has_order or not may_keep_later(changed, view, led_shard):
                self._contents = contents
                if gains_slots(changed, view, led_shard):
                    self._is_limited = self.terms.confirming.limit(last_seq)
                self._extend_lease()  # a deposed primary serves no reads while the disk is slow
                self._keeping.write_now()
                self._on_change()
                return
            self._keeping.write_later()
        member.is_kept = not changed
        self.on_contents(contents)

    def _note_written(self, done: bool) -> None:
        """The disk has what was seen last, or it cannot be written."""
        if self._is_limited:
            self._is_limited = False
            self.terms.confirming.end_limit()
        self.member.is_kept = done
        contents, self._contents = self._contents, None
        if contents is not None:
            self.on_contents(contents)
        following, self._following = self._following, None
        if following is None:
            self.look()
        else:
            self._react()
            self._take(following)

    def _lose(self, problem: Exception) -> None:
        self.etcd_errors += 1
        if self.member.is_reachable or str(problem) != self._lost:  # attempts continue
            self._lost = str(problem)
            log.warning("%s", reason_of(problem))
        self.member.lose()
        self._react()

    def _read(self) -> None:
        """Read all contents; one read at a time, so that their order is that of the store."""
        if self._reading:
            self._read_again = True
        else:
            self._reading = True
            self._spawn(self._read_all())

    async def _read_all(self) -> None:
        try:
            while True:
                self._read_again = False
                before = self._revision
                try:
                    contents = await self._store.read()
                    if before <= contents.revision < self._revision:
                        self._read_again = True  # the watch has seen more meanwhile
                    else:
                        self._take(contents)
                except (Unreachable, Refused) as problem:
                    self._lose(problem)
                    return
                if not self._read_again:
                    return
        finally:
            self._reading = False

    # Orders

    def _carry_out(self, action: Action) -> None:
        match action:
            case GetLease():
                self._spawn(self._get_lease(action))
            case KeepLease():
                self._spawn(self._keep_lease(action))
            case Write():
                self._spawn(self._write(action))
            case ReadAgain():
                self._read()
            case AskPromise():
                self._spawn(self._ask(action))
            case AskReturn():
                self._spawn(self._ask_return(action))
            case Lead() | Follow() | Rest():
                self._order(action)

    def _order(self, action: Lead | Follow | Rest) -> None:
        try:
            match action:
                case Lead(term, members, durable):
                    self.terms.lead(term, members, durable)
                case Follow(node, (host, port), term, durable):
                    self.terms.follow(host, port, node, term, durable)
                case Rest(term):
                    if self.terms.term and term > self.terms.term:
                        self.terms.promise(term)
                    elif not self.member.shard:
                        self.terms.leave()
        except CommandError as problem:
            if self._refused != problem.message:  # attempts continue
                self._refused = problem.message
                log.error("this node cannot take its part in the shard: %s", problem.message)
            self.member.order_failed(steady_ms())
        else:
            self._refused = ""

    async def _get_lease(self, action: GetLease) -> None:
        lease, sent_ms = self.member.lease, steady_ms()
        try:
            grant = await self._store.grant(action.ttl_s)
        except (Unreachable, Refused):
            self.etcd_errors += 1
            lease.failed(steady_ms())
        else:
            lease.granted(grant.id, grant.ttl_s, sent_ms)
            self.look()

    async def _keep_lease(self, action: KeepLease) -> None:
        lease, sent_ms = self.member.lease, steady_ms()
        try:
            ttl_s = await self._store.keep_alive(action.lease)
        except (Unreachable, Refused):
            self.etcd_errors += 1
            lease.failed(steady_ms())
        else:
            lease.kept(ttl_s, sent_ms)
            self.look()

    async def _write(self, action: Write) -> None:
        commit = None
        try:
            commit = await self._store.commit(action.compares, action.changes)
        except LeaseEnded:
            self.member.lease.end()
        except (Unreachable, Refused) as problem:
            self.etcd_errors += 1
            log.warning("a transaction (%s) has failed: %s", action.purpose.name, problem)
        except Exception:  # its outcome is unknown, too
            log.critical("a transaction (%s) has failed", action.purpose.name, exc_info=True)
        self.member.written(action.purpose, commit, steady_ms())
        self._react()

    # Promises

    async def _ask(self, action: AskPromise) -> None:
        if action.node == self.member.id:
            standing = await self._promise(action.term)
        else:
            asked = PromiseRequest(
                self.member.shard, action.term, self.member.id, action.reason, action.node
            )
            standing = await self._asker.ask(action.address, asked)
        self.member.promised(action.node, action.term, standing, steady_ms())
        self._react()

    async def _promise(self, term: int) -> LastFrame | None:
        """Promise as the others do; the frames on the disk then, or None."""
        end_s = time.monotonic() + PROMISE_S
        try:
            self.terms.promise(term)
            while not self.terms.is_promise_stored:
                if time.monotonic() > end_s:
                    return None
                await asyncio.sleep(STORED_S)
            return self.terms.standing()
        except CommandError as problem:
            log.warning("this node cannot promise term %d: %s", term, problem.message)
            return None

    async def _ask_return(self, action: AskReturn) -> None:
        """Ask another shard to give slots back."""
        moves = self.member.moves
        if await self._asker.ask_return(action.address, action.asked) and moves is not None:
            moves.returns.answered(action)
            self.look()

    def describe(self) -> bytes:
        """The knowledge of this node of its cluster, as JSON."""
        seen = self._seen
        return describe(self.member, seen.cluster, seen.revision, seen.values, steady_ms())

    def check(self, asked: PromiseRequest) -> None:
        """Before a promise to another member. CommandError if this node refuses it, and while this
        primary waits until the candidate has all frames."""
        if asked.shard != self.member.shard:
            raise CommandError(f"ERR this node is not a member of shard {asked.shard}")
        refusal = self.member.refusal_of(asked.candidate, asked.term, asked.reason, steady_ms())
        if refusal:
            raise CommandError(f"ERR {refusal}")
        if asked.reason is Reason.FAILOVER and self._handover.is_waiting(asked.candidate):
            raise CommandError(WAITING)
