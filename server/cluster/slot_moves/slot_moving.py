"""Slots that move to and from the shard of this node: the judge with its links, the requests of
operators (CLUSTER MIGRATION), and the figures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress

from millstream.commands.admin.cluster_peers import ReturnRequest
from millstream.errors import CommandError
from millstream.server.cluster.cluster_view import ClusterView, Found, view_of
from millstream.server.cluster.member_actions import Purpose
from millstream.server.cluster.member_service import MemberService
from millstream.server.cluster.pending_changes import PendingChange, PendingChanges
from millstream.server.cluster.slot_map import new_id
from millstream.server.cluster.slot_moves.move_canceling import cancel_moves
from millstream.server.cluster.slot_moves.move_judge import MoveJudge
from millstream.server.cluster.slot_moves.move_links import MoveLinks
from millstream.server.cluster.slot_moves.move_rules import (
    ENDED,
    planned,
    shown_slots,
    united,
)
from millstream.server.cluster.store.records import MAP, MOVE, MoveRecord, Step, encode
from millstream.server.cluster.store.store import Change, Compare, Store
from millstream.server.execution.clocks import wall_clock_ms
from millstream.storage.keyspace.slot_ranges import Ranges

LIMIT_S = 5.0
READ_S, LOOK_S = 1.0, 0.005
ATTEMPTS = 5
REFUSED = "ERR slots cannot be moved"
UNREACHABLE = "ERR slots cannot be moved while etcd is unreachable"
STATES = {Step.DONE: "completed"}  # Redis' words; the others are the same


class SlotMoving:
    """`end_wait(client_id)` ends the wait of a client whose reply is there. The timeouts are the
    directives in milliseconds."""

    def __init__(
        self,
        service: MemberService,
        links: MoveLinks,
        store: Store,
        end_wait: Callable[[int], object],
        handover_timeout_ms: Callable[[], int],
        move_timeout_ms: Callable[[], int],
    ) -> None:
        self.links = links
        self.judge = MoveJudge(links, wall_clock_ms, handover_timeout_ms, move_timeout_ms)
        self._service = service
        self._store = store
        self._changes = PendingChanges(REFUSED, UNREACHABLE, LIMIT_S, end_wait)
        member, judge = service.member, self.judge
        member.moves = judge
        links.leaving.may_copy = lambda move: judge.refusal_to_copy(member, move)
        links.leaving.target_of = self._target_of
        links.leaving.may_leave = self._may_leave
        links.arriving.on_change = service.look

    def _target_of(self, move: str) -> str:
        view = self._service.member.view
        return view.moves[move].record.target if view is not None and move in view.moves else ""

    def give_back(self, asked: ReturnRequest) -> None:
        """The primary of the source asks whether this shard has the slots. CommandError if it may
        have them, and TRYAGAIN until no election here loses that it has not."""
        self._service.terms.check_member(asked.node, asked.node, asked.term)
        refusal = self.judge.refusal_to_give_back(self._service.member, asked)
        if refusal:
            raise CommandError(f"ERR {refusal}")
        self.links.arriving.give_back(asked.move)

    def stop(self) -> None:
        """The server stops."""
        self._changes.stop()

    def _may_leave(self, move: str, revision: int) -> bool:
        service = self._service
        return not service.is_writing and self.judge.may_leave(service.member, move, revision)

    # State

    def _own(self) -> Iterator[tuple[str, Found[MoveRecord]]]:
        """The moves to and from the own shard, the newest first."""
        view, shard = self._service.member.view, self._service.member.shard
        if view is not None and shard:
            rows = sorted(view.moves.items(), key=lambda one: -one[1].record.created_ms)
            for move, found in rows:
                if shard in (found.record.source, found.record.target):
                    yield move, found

    @property
    def running(self) -> int:
        """The number of moves to and from the own shard that have not ended."""
        return sum(1 for _, found in self._own() if found.record.step not in ENDED)

    def status(self, move: str) -> list[dict[bytes, object]]:
        """Descriptions of the moves of the own shard, or of the one with this ID."""
        return [self._described(id, found.record) for id, found in self._own() if move in ("", id)]

    def _described(self, move: str, record: MoveRecord) -> dict[bytes, object]:
        shard, view = self._service.member.shard, self._service.member.view
        assert view is not None
        source, target = (
            view.shards[name].record.primary if name in view.shards else ""
            for name in (record.source, record.target)
        )
        arriving = self.links.arriving
        error = self.judge.returns.waits_for(move) or arriving.problem_of(move)
        error = error or arriving.obstacle_of(move) or record.reason
        pause_ms = record.moved_ms - record.handed_ms if record.moved_ms else 0
        fields: dict[str, str | int] = {
            "id": move,
            "slots": shown_slots(record.slots),
            "source": source,
            "dest": target,
            "operation": "import" if record.target == shard else "migrate",
            "state": STATES.get(record.step, record.step.value),
            "last_error": error,
            "retries": record.retries,
            "create_time": record.created_ms,
            "start_time": record.begun_ms,
            "end_time": record.ended_ms,
            "write_pause_ms": max(0, pause_ms),
        }
        return {
            name.encode(): value.encode() if isinstance(value, str) else value
            for name, value in fields.items()
        }

    def stop_at(self, words: list[str]) -> None:
        """DEBUG CLUSTER-STOP: moves stay in these steps, and elections and moves before these
        transactions. CommandError if there is no such step."""
        purposes = {one.name.lower(): one for one in (Purpose.STAND, Purpose.CHOOSE, Purpose.MOVE)}
        known = [*purposes, *(step.value for step in Step if step not in ENDED), Step.DONE.value]
        for word in words:
            if word not in known:
                raise CommandError(f"ERR no step {word}: the steps are {', '.join(known)}")
        self.judge.stopped = frozenset(words)
        self._service.member.stopped = {purposes[word] for word in words if word in purposes}

    # Requests

    def order(self, client_id: int, ranges: Ranges) -> PendingChange:
        """Move slots to the own shard. CommandError if this node is not its primary, or the slots
        cannot move."""
        view, shard = self._require_primary()
        try:
            slots = united(ranges)
        except ValueError as problem:
            raise CommandError(f"ERR {problem}") from None
        self._planned(view, slots, shard)
        return self._changes.begin(client_id, lambda: self._order(slots, shard))

    def _require_primary(self) -> tuple[ClusterView, str]:
        member = self._service.member
        if member.view is None or not member.shard or not member.is_leading:
            raise CommandError("ERR this node is not the primary of a shard")
        if member.is_store_old:
            raise CommandError(f"{REFUSED}: etcd has an older state than this node has seen")
        return member.view, member.shard

    def _planned(self, view: ClusterView, ranges: Ranges, shard: str) -> MoveRecord:
        try:
            records = planned(view, ranges, shard, wall_clock_ms())
        except ValueError as problem:
            raise CommandError(f"ERR {problem}") from None
        if len(records) > 1:
            raise CommandError("ERR slots belong to different source nodes")
        if records[0].slots != ranges:
            raise CommandError("ERR this node is already the owner of the slot range")
        return records[0]

    async def _order(self, ranges: Ranges, shard: str) -> object:
        move = new_id()
        for _ in range(ATTEMPTS):
            view = view_of(await self._store.read())
            record = self._planned(view, ranges, shard)
            compares = [Compare(MAP, view.map_version), Compare(MOVE + move, 0)]
            change = Change(MOVE + move, encode(record))
            commit = await self._store.commit(compares, [change])
            if commit.done:
                await self._read_own(commit.revision)
                return move.encode()
        raise CommandError("ERR slots are moving at this moment: try again")

    def cancel(self, client_id: int, move: str) -> PendingChange:
        """End the move to the own shard with this ID, or all ("")."""
        _, shard = self._require_primary()

        def is_chosen(id: str, record: MoveRecord) -> bool:
            return move in ("", id) and record.target == shard

        return self._changes.begin(client_id, lambda: self._cancel(is_chosen))

    def take_back(self, move: str) -> None:
        """Serve slots again that have left, without an answer of the other shard, which is lost.
        CommandError if this move does not wait for one."""
        self._require_primary()
        returns = self.judge.returns
        if not returns.waits_for(move):
            raise CommandError(f"ERR the move {move} does not wait for another shard")
        returns.forced.add(move)
        self._service.look()

    async def _cancel(self, is_chosen: Callable[[str, MoveRecord], bool]) -> object:
        """The number of moves that have ended."""
        revisions = await cancel_moves(self._store, is_chosen)
        if revisions:
            await self._read_own(revisions[-1])
        return len(revisions)

    async def _read_own(self, revision: int) -> None:
        """Wait for a short time until this node knows its own change: STATUS shows it then."""
        member = self._service.member
        with suppress(TimeoutError):
            async with asyncio.timeout(READ_S):
                while member.view is None or member.view.revision < revision:
                    await asyncio.sleep(LOOK_S)
