"""The model's check of trims by blocks or bytes, whose exact end only the server knows.

The model gets the trimmed entries. It computes which entries a policy may evict, and which it must
evict, from the result of an exact policy, from the maximum of entries in a block, and from the
minimum and maximum size of an entry.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.sim.data import EntryId, Policy, Stream

# An entry without its words and their lengths: head, ID, number of names, offset in each table.
ENTRY_BYTES_MAX = 1 + 7 + 1 + 3 * 4
# Evicted entries at the beginning of a block leave their offsets in its tables.
SETS_MAX = 30
NODES_MAX = 4
CHECKPOINT_EVERY = 32


def is_foretold(policy: Policy) -> bool:
    """True if the entries alone determine what the policy evicts."""
    _, _, size, exact = policy
    return exact and size == 0


def before(stream: Stream, first: EntryId | None) -> list[EntryId]:
    """The entries below the first kept one."""
    return [entry_id for entry_id in stream.entries if first is None or entry_id < first]


def may_go(stream: Stream, now_ms: int, block_entries: int) -> list[EntryId]:
    """All that an exact policy could evict."""
    if stream.policy is None:
        return []
    length, _, size, _ = stream.policy
    ids = list(stream.entries)
    counts = [len(stream.over_age(now_ms))]
    if length:
        counts.append(len(ids) - length)
    if size:
        counts.append(_count_beyond(stream, size - _table_bytes(block_entries)))
    return ids[: max(0, *counts)]


def must_go(stream: Stream, now_ms: int, block_entries: int, grace_ms: int = 0) -> list[EntryId]:
    """The entries that must be evicted even if one more block is kept."""
    if stream.policy is None:
        return []
    length, _, size, exact = stream.policy
    more = 0 if exact else block_entries
    ids = list(stream.entries)
    counts = [0, len(stream.over_age(now_ms, grace_ms)) - more]
    if length:
        counts.append(len(ids) - length - more)
    if size:
        counts.append(_count_surely_beyond(stream, ids, size, more))
    return ids[: max(counts)]


def _count_beyond(stream: Stream, size: int) -> int:
    """Entries from which on all could take more than `size` bytes."""
    beyond = 0
    total = sum(map(_most_bytes, [*stream.entries.values(), *stream.ghosts.values()]))
    ghosts = sorted(stream.ghosts, reverse=True)
    for entry_id, words in stream.entries.items():
        while ghosts and ghosts[-1] < entry_id:
            total -= _most_bytes(stream.ghosts[ghosts.pop()])
        if total <= size:
            break
        beyond += 1
        total -= _most_bytes(words)
    return beyond


def _count_surely_beyond(stream: Stream, ids: list[EntryId], size: int, more: int) -> int:
    """Entries too many if, without the `more` first ones, they take too many bytes."""
    left = [_least_bytes(stream.entries[entry_id]) for entry_id in ids]
    count, total = 0, sum(left[more:])
    while total > size:
        total -= left[more + count]
        count += 1
    return count


def _table_bytes(block_entries: int) -> int:
    """The maximum size of the tables of a block that is cut inside."""
    checkpoints = block_entries // CHECKPOINT_EVERY
    return 4 * (min(block_entries, SETS_MAX) + NODES_MAX + checkpoints)


def _most_bytes(words: Iterable[bytes]) -> int:
    return ENTRY_BYTES_MAX + sum(
        2 + len(word) if len(word) > 127 else 1 + len(word) for word in words
    )


def _least_bytes(words: tuple[bytes, ...]) -> int:
    """The minimum size of an entry: a head, and the values with their lengths; names may be
    shared."""
    return 1 + sum(1 + len(value) for value in words[1::2])
