"""The model of TBLOCKS: the entries that a reader decodes, independent of their layout in
blocks."""

from __future__ import annotations

from dataclasses import dataclass

from tests.sim.data import ZERO, EntryId, Stream
from tests.sim.model.answers import Answer, Judged, parse_id
from tests.sim.model.clients import ClientModel, Request
from tests.sim.model.model import Model, does
from tests.sim.promises import demand
from tests.support.resp import Map, Null, Reply, facts_of

from millstream.storage.blocks.block import Block

BLOCKS_MAX = 16_384
PAGE_BYTES = 1_048_576
LAST: EntryId = (2**64 - 1, 2**64 - 1)


@dataclass(slots=True)
class Page(Judged):
    """A page of a stream at the time of the request."""

    model: Model
    stream: Stream
    start: EntryId
    end: EntryId
    blocks_max: int
    size_bytes: int

    def judge(self, reply: Reply) -> None:
        facts = facts_of(reply)
        first, last = parse_id(word_of(facts, b"first-id")), parse_id(word_of(facts, b"last-id"))
        there = [i for i in self.stream.entries if self.start <= i <= self.end]
        demand(self.start <= first, f"a page that starts at {first}: {reply!r}")
        demand(not there or first <= there[0], f"a page of {there} starts at {first}")
        demand(last == min(self.end, self.stream.last_id), f"a page that ends at {last}")
        self._judge_counters(facts)
        following = None
        if facts[b"next-id"] not in (Null.BULK, Null.RESP3):
            following = parse_id(word_of(facts, b"next-id"))
            demand(first < following <= last, f"after {first} to {last} comes {following}")
            there = [i for i in there if i < following]
        found = self._entries(facts[b"blocks"], first, last)
        demand(list(found) == there, f"a page has {list(found)} and not {there}")
        for entry_id, words in found.items():
            wanted = self.stream.entries[entry_id]
            demand(words == wanted, f"a page has {words!r} at {entry_id} and not {wanted!r}")

    def _entries(
        self, blocks: Reply, first: EntryId, last: EntryId
    ) -> dict[EntryId, tuple[bytes, ...]]:
        forms = forms_of(blocks)
        demand(len(forms) <= self.blocks_max, f"{len(forms)} blocks are more than asked for")
        size = sum(map(len, forms))
        demand(len(forms) == 1 or size <= self.size_bytes, f"{size} bytes are more than asked for")
        rows = rows_of(forms)
        ids = [entry_id for entry_id, _ in rows]
        demand(ids == sorted(set(ids)), f"a page whose ids do not rise: {ids}")
        return {entry_id: words for entry_id, words in rows if first <= entry_id <= last}

    def _judge_counters(self, facts: dict[bytes, Reply]) -> None:
        stream = self.stream
        counters = {b"length": len(stream.entries), b"entries-added": stream.entries_added,
                    b"entries-evicted": stream.entries_evicted}  # fmt: skip
        for name, number in counters.items():
            demand(facts[name] == number, f"{name!r} is {facts[name]!r} and not {number}")
        max_evicted = parse_id(word_of(facts, b"max-evicted-id"))
        demand(max_evicted == stream.max_evicted, f"up to {max_evicted} is evicted")
        shown = facts[b"incarnation"]
        assert isinstance(shown, int)
        self.model.values.judge_incarnation(stream, shown)


def word_of(facts: dict[bytes, Reply], name: bytes) -> bytes:
    word = facts[name]
    assert isinstance(word, bytes), f"{name!r} is {word!r}"
    return word


def ids_of(reply: Reply) -> list[EntryId]:
    """The entries that a page shows."""
    if not isinstance(reply, Map | list):
        return []
    facts = facts_of(reply)
    first, last = (parse_id(word_of(facts, name)) for name in (b"first-id", b"last-id"))
    rows = rows_of(forms_of(facts[b"blocks"]))
    return [entry_id for entry_id, _ in rows if first <= entry_id <= last]


def forms_of(blocks: Reply) -> list[bytes]:
    """The blocks of a page, in their disk form."""
    assert isinstance(blocks, list)
    return [form for form in blocks if isinstance(form, bytes)]


def rows_of(forms: list[bytes]) -> list[tuple[EntryId, tuple[bytes, ...]]]:
    """All entries of these blocks, including those outside the page."""
    entries = [entry for form in forms for entry in Block.from_bytes(form).entries()]
    return [((ms, seq), tuple(words)) for ms, seq, words in entries]


@does("tblocks")
def tblocks(model: Model, client: ClientModel, words: Request) -> Answer:
    """TBLOCKS key start end [COUNT blocks] [BYTES bytes]"""
    stream = model.values.stream((client.db, words[1]))
    if stream is None:
        return None
    start = ZERO if words[2] == b"-" else parse_id(words[2])
    end = LAST if words[3] == b"+" else parse_id(words[3])
    most = int(words[words.index(b"COUNT") + 1]) if b"COUNT" in words else BLOCKS_MAX
    size = int(words[words.index(b"BYTES") + 1]) if b"BYTES" in words else PAGE_BYTES
    return Page(model, stream.copy(), start, end, min(most, BLOCKS_MAX), size)
