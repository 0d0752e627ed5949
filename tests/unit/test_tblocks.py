"""TSEEK and TBLOCKS: the counts are exact, and pages of blocks hold exactly the range."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.effort import examples
from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.resp import Error, Null
from tests.support.storage_access import check_stream

from millstream.storage.blocks.block import Block
from millstream.storage.streams.stream import Stream

EntryId = tuple[int, int]
U64_MAX = 2**64 - 1


def parsed(text: Any) -> EntryId:
    assert isinstance(text, bytes)
    ms, seq = text.split(b".")
    return int(ms), int(seq)


def written(entry_id: EntryId) -> str:
    return f"{entry_id[0]}.{entry_id[1]}"


class Blocks:
    """One TBLOCKS reply."""

    def __init__(self, reply: Any) -> None:
        fields = dict(zip(reply[::2], reply[1::2], strict=True))
        self.first, self.last = parsed(fields[b"first-id"]), parsed(fields[b"last-id"])
        self.next = None if fields[b"next-id"] is Null.BULK else parsed(fields[b"next-id"])
        self.raw = fields[b"blocks"]
        self.fields = fields

    def entries(self) -> list[tuple[int, int, list[bytes]]]:
        """As a reader has to take them: what lies outside of first..last is not there."""
        found = [entry for raw in self.raw for entry in Block.from_bytes(raw).entries()]
        return [entry for entry in found if self.first <= entry[:2] <= self.last]


def pages(
    player: InProcessClient, key: str, start: str, end: str, limits: str = ""
) -> list[Blocks]:
    found = [Blocks(player.call(f"TBLOCKS {key} {start} {end} {limits}"))]
    while (following := found[-1].next) is not None:
        found.append(Blocks(player.call(f"TBLOCKS {key} {written(following)} {end} {limits}")))
    return found


@st.composite
def plays(draw: st.DrawFn) -> list[tuple[str, int]]:
    step = st.one_of(
        st.tuples(st.just("append"), st.integers(1, 60)),
        st.tuples(st.just("keep"), st.integers(0, 80)),
        st.tuples(st.just("delete"), st.integers(0, 200)),
        st.tuples(st.just("wait"), st.integers(1, 3)),
    )
    return draw(st.lists(step, min_size=1, max_size=25))


def played(play: list[tuple[str, int]], node_entries: int) -> tuple[InProcessClient, Stream]:
    in_process = InProcessServer()
    in_process.keyspace.node_entries = node_entries
    player = in_process.player()
    player.call("TAPPEND s f first")
    stream = in_process.keyspace.databases[0].stream(b"s")
    assert stream is not None
    number = 0
    for kind, amount in play:
        if kind == "append":
            for _ in range(amount):
                number += 1
                player.call(f"TAPPEND s f {number} g {'x' * (number % 7)}")
        elif kind == "keep":
            player.call(f"TAPPEV s COUNT {amount}")
        elif kind == "delete" and len(stream):
            ms, seq = stream.range()[amount % len(stream)][:2]
            player.call(f"XDEL s {ms}-{seq}")
        elif kind == "wait":
            in_process.wait_ms(amount)
    check_stream(stream)
    return player, stream


def some_ids(stream: Stream) -> list[EntryId]:
    """IDs of entries, between them, of deleted entries, and both ends of all IDs."""
    there = [entry[:2] for entry in stream.range()]
    around = [(ms, seq + 1) for ms, seq in there[::7]] + [(ms + 1, 0) for ms, _ in there[::11]]
    return [(0, 0), (1, 1), *there, *around, stream.last_id, (U64_MAX, U64_MAX)]


@given(plays(), st.sampled_from([1, 2, 10, 100]), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_tseek_counts_as_a_list_does(
    play: list[tuple[str, int]], node_entries: int, data: st.DataObject
) -> None:
    player, stream = played(play, node_entries)
    there = [entry[:2] for entry in stream.range()]
    for _ in range(8):
        after = data.draw(st.sampled_from(some_ids(stream)))
        count = data.draw(st.integers(0, len(there) + 2))
        found = [entry_id for entry_id in there if entry_id > after][:count]
        wanted: list[object] = [0, Null.BULK]
        if found:
            wanted = [len(found), written(found[-1]).encode()]
        assert player.call(f"TSEEK s {written(after)} {count}") == wanted


@given(plays(), st.sampled_from([1, 2, 10, 100]), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_the_pages_of_a_range_hold_exactly_the_range(
    play: list[tuple[str, int]], node_entries: int, data: st.DataObject
) -> None:
    player, stream = played(play, node_entries)
    for _ in range(4):
        start, end = (data.draw(st.sampled_from(some_ids(stream))) for _ in range(2))
        limits = data.draw(st.sampled_from(["", "COUNT 1", "COUNT 3", "BYTES 1", "BYTES 2000"]))
        found = pages(player, "s", written(start), written(end), limits)
        assert [entry for page in found for entry in page.entries()] == stream.range(
            *start, end=end)  # fmt: skip
        for page in found[:-1]:
            assert page.raw, "a page that leads on has a block"
        if limits.startswith("COUNT"):
            assert all(len(page.raw) <= int(limits.split()[1]) for page in found)
        if limits.startswith("BYTES"):
            most = int(limits.split()[1])
            assert all(len(p.raw) <= 1 or sum(map(len, p.raw)) <= most for p in found)


def test_a_page_has_the_counters_that_show_missed_entries(player: InProcessClient) -> None:
    for number in range(1, 251):
        player.call(f"XADD s {number}-0 f v")
    page = Blocks(player.call("TBLOCKS s 5 20"))
    assert (page.first, page.last) == ((5, 0), (20, U64_MAX))
    player.call("TAPPEV s COUNT 200")
    player.call("XDEL s 100-0")
    page = Blocks(player.call("TBLOCKS s 5 +"))
    assert (page.first, page.last, page.next) == ((51, 0), (250, 0), None)
    assert [ms for ms, *_ in page.entries()] == [n for n in range(51, 251) if n != 100]
    counters = ("length", "entries-added", "entries-evicted", "max-evicted-id")
    assert [page.fields[name.encode()] for name in counters] == [199, 250, 50, b"50.0"]
    info: Any = player.call("TINFO s")
    known = dict(zip(info[::2], info[1::2], strict=True))
    assert page.fields[b"incarnation"] == known[b"incarnation"]


def test_the_open_block_is_copied_out_and_continues(player: InProcessClient) -> None:
    player.call("XADD s 1-0 f v")
    before = Blocks(player.call("TBLOCKS s - +"))
    player.call("XADD s 2-0 f v")
    after = Blocks(player.call("TBLOCKS s - +"))
    assert [ms for ms, *_ in before.entries()] == [1]
    assert [ms for ms, *_ in after.entries()] == [1, 2]
    exclusive = Blocks(player.call("TBLOCKS s (1-0 (2-0"))
    assert exclusive.entries() == []


def test_an_empty_range_has_no_block(player: InProcessClient) -> None:
    player.call("XADD s 5-0 f v")
    for between in ("6 +", "- 4", "+ -", "(5 +"):
        page = Blocks(player.call(f"TBLOCKS s {between}"))
        assert (page.entries(), page.next) == ([], None)
    player.call("TAPPEV s COUNT 0")
    page = Blocks(player.call("TBLOCKS s - +"))
    assert (page.raw, page.next, page.last) == ([], None, (5, 0))


def test_a_long_page_is_sent_in_slices_and_complete(player: InProcessClient) -> None:
    value = "x" * 3000
    for number in range(1, 901):
        player.call(f"XADD s {number}-0 f {value}{number}")
    page = Blocks(player.call("TBLOCKS s - + BYTES 100000000"))
    assert page.next is None
    assert [entry[0] for entry in page.entries()] == list(range(1, 901))
    first = Blocks(player.call("TBLOCKS s - +"))
    assert first.next is not None
    assert sum(map(len, first.raw)) <= 1 << 20
    everything = [e for p in pages(player, "s", "-", "+") for e in p.entries()]
    assert everything == page.entries()


def test_pages_are_part_of_a_transaction(player: InProcessClient) -> None:
    player.call("XADD s 1-0 f v")
    assert player.call("MULTI")
    player.call("TAPPENDONCE s PRODUCER p 1 f v")
    player.call("TBLOCKS s - +")
    player.call("TSEEK s 0 9")
    made, page, sought = player.call("EXEC")  # type: ignore[misc]
    assert len(Blocks(page).entries()) == 2
    assert sought == [2, made]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("TSEEK s x 1", "Invalid stream ID specified as stream command argument"),
        ("TSEEK s - 1", "Invalid stream ID"),
        ("TSEEK s 1 x", "value is not an integer or out of range"),
        ("TSEEK s 1 -1", "value is not an integer or out of range"),
        ("TSEEK k 1 1", "WRONGTYPE"),
        ("TBLOCKS s x +", "Invalid stream ID"),
        ("TBLOCKS s - + COUNT 0", "value is out of range, must be positive"),
        ("TBLOCKS s - + BYTES -1", "value is out of range, must be positive"),
        ("TBLOCKS s - + BYTES x", "value is not an integer or out of range"),
        ("TBLOCKS s - + BYTES", "syntax error"),
        ("TBLOCKS s - + FOO 1", "syntax error"),
        ("TBLOCKS k - +", "WRONGTYPE"),
        ("TINFO k", "WRONGTYPE"),
    ],
)
def test_errors_name_what_is_wrong(player: InProcessClient, line: str, words: str) -> None:
    player.call("SET k v")
    player.call("XADD s 1-0 f v")
    reply = player.call(line)
    assert isinstance(reply, Error)
    assert words in reply.text


def test_a_missing_stream_has_null_replies(player: InProcessClient) -> None:
    assert player.call("TSEEK none 0 5") == [0, Null.BULK]
    assert player.call("TBLOCKS none - +") == Null.BULK
    assert player.call("TINFO none") == Null.BULK
    assert player.call("EXISTS none") == 0
