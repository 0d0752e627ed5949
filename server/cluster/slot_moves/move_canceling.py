"""Moves of slots that an operator ends: the slots stay where they are."""

from __future__ import annotations

from collections.abc import Callable

from millstream.server.cluster.cluster_view import Found, view_of
from millstream.server.cluster.slot_moves.move_judge import canceled
from millstream.server.cluster.store.records import MOVE, MoveRecord, encode
from millstream.server.cluster.store.store import Change, Compare, Store
from millstream.server.execution.clocks import wall_clock_ms

ATTEMPTS = 5  # a record may get another step meanwhile


async def cancel_moves(
    store: Store, is_chosen: Callable[[str, MoveRecord], bool], *, is_forced: bool = False
) -> list[int]:
    """End the moves that are chosen by ID and record, unless the slots have moved; for each, the
    revision of the store. No primary has to run: both primaries look at the record. By force, the
    source does not ask the target before it serves the slots again."""
    view = view_of(await store.read())
    revisions = []
    for move, found in view.moves.items():
        if is_chosen(move, found.record):
            revision = await _cancel_one(store, move, found, is_forced)
            revisions += [revision] if revision else []
    return revisions


async def _cancel_one(
    store: Store, move: str, found: Found[MoveRecord] | None, is_forced: bool
) -> int:
    """The revision, or 0 if the move has ended or does not end."""
    for _ in range(ATTEMPTS):
        if found is None:
            return 0
        record = canceled(found.record, wall_clock_ms(), is_forced=is_forced)
        if record is None:
            return 0
        compare = Compare(MOVE + move, found.version)
        commit = await store.commit([compare], [Change(MOVE + move, encode(record))])
        if commit.done:
            return commit.revision
        found = view_of(await store.read()).moves.get(move)
    return 0
