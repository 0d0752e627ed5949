"""Naive models of the storage structures: lists and dicts that are obviously correct, and slow.

The tests run the same steps on a model and on the real structure and compare the results. The
strategies prefer edge cases: IDs at both ends of the 64-bit range, equal milliseconds, empty names
and values, and enough field-name sets to fill a block's table.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

MAX = 2**64 - 1
NODES_IN_BLOCK = 4
BLOCK_BYTES_LARGE = 48 * 1024

EntryId = tuple[int, int]
Words = list[bytes]
Entry = tuple[int, int, Words]


def after(id_: EntryId) -> EntryId | None:
    """The smallest id above this one; None above the greatest."""
    ms, seq = id_
    if seq < MAX:
        return ms, seq + 1
    return (ms + 1, 0) if ms < MAX else None


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(data), data)


def encoded(entries: list[Entry], dotted: bool) -> bytes:
    """Entries as RESP: flat in the draft's dialect, nested in Redis'."""
    made = []
    for ms, seq, words in entries:
        fields = b"".join(map(bulk, words))
        if dotted:
            made.append(b"*%d\r\n" % (1 + len(words)) + bulk(b"%d.%d" % (ms, seq)) + fields)
        else:
            id_text = bulk(b"%d-%d" % (ms, seq))
            made.append(b"*2\r\n" + id_text + b"*%d\r\n" % len(words) + fields)
    return b"".join(made)


# ---------------------------------------------------------------- strategies

numbers = st.one_of(
    st.integers(0, 3),
    st.integers(MAX - 3, MAX),
    st.sampled_from([127, 128, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 1_700_000_000_000]),
    st.integers(0, MAX),
)
ids = st.tuples(numbers, numbers)

short_names = st.sampled_from([b"", b"a", b"sensor", b"temperature", b"x" * 9, b"y" * 10])
names = st.one_of(short_names, st.integers(0, 60).map(lambda n: b"name-%d" % n))
values = st.one_of(
    st.binary(max_size=20), st.sampled_from([b"", b"\r\n", b"v" * 127, b"v" * 128, b"v" * 300])
)
entry_words = st.lists(st.tuples(names, values), min_size=1, max_size=4).map(
    lambda pairs: [word for pair in pairs for word in pair]
)

# How the next id follows the last one, in all the forms that a block stores differently.
steps = st.one_of(
    st.just(("seq", 1)),
    st.just(("ms", 1)),
    st.tuples(st.just("seq"), st.integers(1, 200)),
    st.tuples(st.just("ms"), st.integers(1, 2**40)),
    st.tuples(st.just("both"), st.integers(1, 2**20)),
)


def stepped(last: EntryId, step: tuple[str, int]) -> EntryId | None:
    """The id that `step` leads to; None when the numbers end before it."""
    ms, seq = last
    kind, size = step
    found = {"seq": (ms, seq + size), "ms": (ms + size, 0), "both": (ms + size, size)}[kind]
    return found if max(found) <= MAX else None


# ---------------------------------------------------------------- stream


@dataclass
class StreamModel:
    """Entries in a list, and the ids written to each node, to know where `~` may trim.

    Nodes end by their number of entries here. A block may also end by its bytes, which the model
    does not count: `append` gets that as an argument, and accepts it of a large block.
    """

    node_entries: int
    entries: list[Entry] = field(default_factory=list)
    blocks: list[list[list[EntryId]]] = field(default_factory=list)
    tail_is_open: bool = False
    block_bytes: int = 0
    last_id: EntryId = (0, 0)
    added: int = 0
    evicted: int = 0
    deleted: int = 0
    max_evicted: EntryId = (0, 0)
    max_deleted: EntryId = (0, 0)

    @property
    def ids(self) -> list[EntryId]:
        return [(ms, seq) for ms, seq, _ in self.entries]

    def append(self, id_: EntryId, words: Words, blocks_after: int) -> None:
        assert id_ > self.last_id
        self.entries.append((*id_, words))
        self.last_id = id_
        self.added += 1
        if not self.tail_is_open:
            self.blocks.append([[]])
            self.tail_is_open = True
            self.block_bytes = 0
        block = self.blocks[-1]
        full = self.node_entries and len(block[-1]) == self.node_entries
        if blocks_after > len(self.blocks):
            by_nodes = full and len(block) == NODES_IN_BLOCK
            assert by_nodes or self.block_bytes > BLOCK_BYTES_LARGE
            self.blocks.append([[]])
            self.block_bytes = 0
        elif full:
            assert len(block) < NODES_IN_BLOCK
            block.append([])
        self.block_bytes += sum(map(len, words)) + 8
        self.blocks[-1][-1].append(id_)

    def evict(self, first_kept: EntryId) -> int:
        gone = [id_ for id_ in self.ids if id_ < first_kept]
        self.entries = self.entries[len(gone) :]
        self.evicted += len(gone)
        self.max_evicted = max([self.max_evicted, *gone])
        self._forget_empty_blocks()
        return len(gone)

    def evict_ids(self, ids: list[EntryId]) -> int:
        gone = sorted(set(ids) & set(self.ids))
        self.entries = [entry for entry in self.entries if entry[:2] not in gone]
        self.evicted += len(gone)
        self.max_evicted = max([self.max_evicted, *gone])
        self._forget_empty_blocks()
        return len(gone)

    def move_last_id(self, last_id: EntryId) -> None:
        """The last block is rewritten without deleted entries, if these are above the new ID."""
        self.last_id = last_id
        self.max_evicted = min(self.max_evicted, last_id)
        if not self.blocks or self.blocks[-1][-1][-1] <= last_id:
            return
        kept = {entry[:2]: entry[2] for entry in self.entries}
        left = [id_ for node in self.blocks.pop() for id_ in node if id_ in kept]
        per_node = self.node_entries or len(left)
        nodes = [left[at : at + per_node] for at in range(0, len(left), per_node)]
        self.blocks.append(nodes)
        self.tail_is_open = True
        self.block_bytes = sum(sum(map(len, kept[id_])) + 8 for id_ in left)

    def delete(self, id_: EntryId) -> bool:
        if id_ not in self.ids:
            return False
        self.entries = [entry for entry in self.entries if entry[:2] != id_]
        self.deleted += 1
        self.max_deleted = max(self.max_deleted, id_)
        self._forget_empty_blocks()
        return True

    def _forget_empty_blocks(self) -> None:
        kept = set(self.ids)
        tail = self.blocks[-1] if self.blocks and self.tail_is_open else None
        self.blocks = [b for b in self.blocks if any(id_ in kept for node in b for id_ in node)]
        self.tail_is_open = tail is not None and any(block is tail for block in self.blocks)

    def goes_by_nodes(self, keep: int | None, minid: EntryId | None, limit: int) -> int:
        """The number of entries that Redis' `~` removes: whole nodes only."""
        kept = set(self.ids)
        removed = 0
        for node in (node for block in self.blocks for node in block):
            live = sum(id_ in kept for id_ in node)
            if keep is not None and len(self.entries) - removed - live < keep:
                break
            if minid is not None and node[-1] >= minid:
                break
            if limit and removed + live > limit:
                break
            removed += live
        return removed

    def between(self, start: EntryId, end: EntryId) -> list[Entry]:
        return [entry for entry in self.entries if start <= entry[:2] <= end]
