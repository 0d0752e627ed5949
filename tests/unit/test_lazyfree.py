"""Lazy freeing: large objects are freed in small steps, no reply differs, and all memory is
freed."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from tests.support.in_process import InProcessServer
from tests.support.resp import Reply, Simple
from tests.support.storage_access import check_stream

from millstream.storage.blocks.lazyfree import defer, free_step
from millstream.storage.blocks.skiplist import sealed_bytes
from millstream.storage.capture.capture import Capture
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream

BLOCKS = 3000  # more than are freed at once
TURN = 500
ASKED = ("XLEN s", "XRANGE s - + COUNT 5", "XREVRANGE s + - COUNT 5", "TRANGE s 0 2000",
         "XINFO STREAM s", "TINFO s", "TSEEK s 0 7")  # fmt: skip


@pytest.fixture(autouse=True)
def deferring() -> Iterator[None]:
    defer(True)
    yield
    defer(False)


def free_all() -> int:
    """The number of turns until all is freed."""
    turns = 0
    while free_step(TURN):
        turns += 1
    return turns


def own_bytes() -> int:
    """The bytes of sealed blocks, without those of servers of earlier tests. These servers are
    cycles: when they are collected, their streams are freed in turns, too."""
    gc.collect()
    free_all()
    return sealed_bytes()


class Large:
    """A stream of one entry a block."""

    def __init__(self, blocks: int = BLOCKS) -> None:
        self.before_bytes = own_bytes()
        self.in_process = InProcessServer()
        self.in_process.keyspace.node_entries = 1
        self.player = self.in_process.player()
        self.append(1, blocks)

    def append(self, first: int, last: int) -> None:
        for number in range(first, last + 1):
            # A block holds several nodes; an entry that is larger than a node has its own.
            self.call(f"XADD s {number}-1 n {'v' * 5000}")

    def call(self, line: str) -> Reply:
        return self.player.call(line)

    def answers(self) -> list[Reply]:
        return [self.call(line) for line in ASKED]

    def kept_bytes(self) -> int:
        return sealed_bytes() - self.before_bytes

    def bytes_that_go(self) -> int:
        """The number of entries of the stream, by deleting it."""
        before_bytes = sealed_bytes()
        self.call("DEL s")
        free_all()
        return before_bytes - sealed_bytes()


TRIMS = ["XTRIM s MAXLEN 10", "XTRIM s MINID 2991", "XTRIM s MAXLEN 0", "XTRIM s MAXLEN 1",
         "TAPPEV s COUNT 10 a b", "XADD s MAXLEN 10 9000-1 a b"]  # fmt: skip


@pytest.mark.parametrize("trim", TRIMS)
def test_a_trim_replies_before_all_memory_is_freed(trim: str) -> None:
    def played(later: bool) -> tuple[list[Reply], int]:
        defer(later)
        large = Large()
        large.call("XGROUP CREATE s g 5")
        large.call("XDEL s 17-1 2995-1")
        replies = [large.call(trim)]
        turns = free_all()
        assert turns >= (BLOCKS - 1500) // TURN if later else turns == 0
        replies += large.answers()
        large.append(20_001, 20_010)
        replies += [*large.answers(), large.call("XTRIM s MAXLEN 3"), *large.answers()]
        check_stream(large.in_process.stream())
        return replies, large.bytes_that_go()

    assert played(True) == played(False)


@pytest.mark.parametrize("order", [1, -1])
def test_a_policy_by_bytes_ignores_memory_that_is_still_to_free(order: int) -> None:
    def played(later: bool) -> list[Reply]:
        defer(later)
        large = Large()
        acts = ["XTRIM s MAXLEN 1500", "TPOLICY s MAXBYTES 500000"][::order]
        return [large.call(line) for line in (*acts, "XLEN s", "TINFO s", "XADD s * a b", "XLEN s")]

    assert played(True) == played(False)


def test_trimmed_entries_count_as_used_until_they_are_freed() -> None:
    large = Large()
    whole_bytes = large.kept_bytes()
    assert large.call("XTRIM s MAXLEN 10") == BLOCKS - 10
    assert large.call("XLEN s") == 10
    assert whole_bytes // 2 < large.kept_bytes() < whole_bytes
    free_all()
    assert large.kept_bytes() < whole_bytes // 100


@pytest.mark.parametrize("act", ["DEL s", "UNLINK s", "FLUSHALL", "SET s v", "RENAME t s"])
def test_a_deleted_stream_is_freed_in_turns(act: str) -> None:
    large = Large()
    large.call("SET t v")
    large.call(act)
    assert large.kept_bytes() > 0
    assert free_all() >= BLOCKS // TURN
    assert large.kept_bytes() == 0


def test_a_trim_and_a_delete_of_the_rest_leave_nothing() -> None:
    large = Large(3 * BLOCKS)
    large.call(f"XTRIM s MAXLEN {BLOCKS}")
    free_step(TURN)
    large.call(f"XTRIM s MAXLEN {BLOCKS // 2}")
    large.call("DEL s")
    free_all()
    assert large.kept_bytes() == 0


def test_all_memory_is_freed_when_deferring_ends() -> None:
    large = Large()
    large.call("XTRIM s MAXLEN 10")
    large.call("COPY s t")
    large.call("DEL s")
    defer(False)
    assert not free_step(1)
    large.call("DEL t")
    assert large.kept_bytes() == 0


def test_a_flushed_database_is_freed_in_turns() -> None:
    in_process = InProcessServer()
    player = in_process.player()
    for number in range(BLOCKS):
        player.call(f"SET k{number} v PX 100000")
    assert player.call("FLUSHDB") == Simple("OK")
    assert player.call("DBSIZE") == 0
    assert free_all() >= BLOCKS // TURN


@pytest.mark.parametrize(("keys", "blocks"), [(10, 900), (2000, 20)])
def test_a_database_of_many_small_streams_is_freed_in_turns_too(keys: int, blocks: int) -> None:
    before_bytes = own_bytes()
    database = Keyspace().databases[0]
    for key in range(keys):
        database.set(b"k%d" % key, small_stream(blocks))
    block_bytes = (sealed_bytes() - before_bytes) // (keys * blocks)
    database.clear()
    left_bytes = sealed_bytes()
    assert left_bytes - before_bytes == keys * blocks * block_bytes
    while free_step(TURN):
        assert left_bytes - sealed_bytes() <= 5 * TURN * block_bytes
        left_bytes = sealed_bytes()
    assert left_bytes == before_bytes


def test_deleting_many_small_streams_frees_them_in_turns_too() -> None:
    large = Large(1)
    names = [f"k{number}" for number in range(50)]
    for name in names:
        large.in_process.keyspace.databases[0].set(name.encode(), small_stream(100))
    held_bytes = large.kept_bytes()
    assert large.call(f"DEL {' '.join(names)}") == 50
    assert large.kept_bytes() == held_bytes
    assert free_all() >= 50
    assert large.kept_bytes() < held_bytes // 50


def small_stream(blocks: int) -> Stream:
    """A stream of `blocks` sealed blocks of the same length, and an open one."""
    stream = Stream()
    for number in range(1, blocks + 2):
        stream.append_entry(number, 0, [b"f", b"v"], node_bytes=1)
    return stream


def test_a_snapshot_has_all_keys_of_a_database_flushed_meanwhile() -> None:
    keyspace = Keyspace()
    for number in range(BLOCKS):
        keyspace.databases[0].set(b"k%d" % number, b"v")
    capture = Capture(keyspace)
    keyspace.databases[0].clear()
    assert not free_step(TURN), "the snapshot needs it still"
    found = 0
    while (step := capture.step(64)) is not None:
        found += len(step)
    assert found == BLOCKS
    capture.close()
    assert free_all() >= BLOCKS // TURN


def test_an_idle_server_frees_memory() -> None:
    large = Large()
    asked: list[float] = []
    callbacks = []
    large.in_process.loop.call_later = lambda delay, callback, *args: (  # type: ignore[assignment, method-assign]
        asked.append(delay), callbacks.append(callback))  # fmt: skip
    large.call("DEL s")
    while callbacks:
        callbacks.pop()()
    assert asked
    assert large.kept_bytes() == 0
