"""maxmemory: used memory, refusals, and the eviction of the oldest blocks first.

Memory is a number that the tests make: what the streams' blocks hold, plus a constant.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator

import pytest
from tests.support.in_process import InProcessClient, InProcessServer, Journal
from tests.support.resp import Error, Reply, Simple

from millstream.server.execution.eviction import BLOCKS_AT_ONCE, KEYS_AT_ONCE, Eviction
from millstream.server.monitor.memory import Gauge, block_bytes
from millstream.storage.blocks.lazyfree import defer
from millstream.storage.keyspace.cluster_slots import cluster_slot_of
from millstream.storage.streams.head_eviction import evict_before
from millstream.storage.streams.retention import bytes_of
from millstream.storage.streams.stream import Stream
from millstream.storage.streams.stream_snapshot import dump_stream, load_stream

OOM = Error("OOM command not allowed when used memory > 'maxmemory'.")
REST_BYTES = 1_000_000


# ---------------------------------------------------------------- used memory


class Machine:
    """A process whose allocator returns nothing to the machine and reuses free memory."""

    def __init__(self) -> None:
        self.blocks, self.others = 0, 5000
        self.held = 5000

    def change(self, blocks: int, others: int) -> None:
        self.blocks += blocks
        self.others += others
        self.held = max(self.held, self.blocks + self.others)

    def gauge(self) -> Gauge:
        return Gauge(lambda: self.held, lambda: self.blocks)


@pytest.mark.parametrize("seed", range(5))
def test_used_memory_is_exact_while_only_blocks_come_and_go(seed: int) -> None:
    chance, machine = random.Random(seed), Machine()
    gauge = machine.gauge()
    for _ in range(200):
        machine.change(chance.randint(-machine.blocks, 10_000), 0)
        assert gauge.measure() == machine.blocks + machine.others
        machine.change(chance.randint(-machine.blocks, 0), 0)
        assert gauge.estimate() == machine.blocks + machine.others


@pytest.mark.parametrize("seed", range(5))
def test_used_memory_covers_held_memory_except_freed_block_space(
    seed: int,
) -> None:
    chance, machine = random.Random(seed), Machine()
    gauge = machine.gauge()
    freed = 0
    for _ in range(500):
        change = chance.randint(-machine.blocks, 10_000)
        freed += max(0, -change)
        machine.change(change, chance.randint(0, 300))
        used = gauge.measure()
        assert machine.blocks <= used <= machine.held
        assert used >= machine.held - freed
    machine.change(machine.held, 0)  # all room is taken, and more: everything shows
    assert gauge.measure() == machine.held


def test_memory_returned_to_the_system_is_not_used() -> None:
    machine = Machine()
    gauge = machine.gauge()
    machine.change(10_000, 50_000)
    assert gauge.measure() == 65_000
    machine.others -= 50_000
    machine.held -= 50_000
    assert gauge.measure() == 15_000


def test_temporary_memory_during_evictions_does_not_add_up() -> None:
    machine = Machine()
    gauge = machine.gauge()
    machine.change(20_000, 0)
    assert gauge.measure() == 25_000
    for _ in range(10):
        machine.held += 2000  # requests, at the end of the heap
        assert gauge.measure() == machine.blocks + 7000
        machine.blocks -= 1500  # that leave holes
        machine.held -= 2000
        assert gauge.measure() == machine.blocks + 5000
    machine.change(15_000, 0)
    assert gauge.measure() == 25_000


def test_blocks_returned_to_the_system_leave_no_reusable_space() -> None:
    machine = Machine()
    gauge = machine.gauge()
    machine.change(50_000, 10_000)
    assert gauge.measure() == 65_000
    machine.blocks -= 50_000
    machine.held -= 50_000
    assert 5000 <= gauge.measure() <= machine.held
    machine.change(20_000, 0)
    assert gauge.measure() == machine.held == 35_000


def test_block_bytes_fall_when_a_stream_drops_or_loses_blocks() -> None:
    before = block_bytes()
    stream = Stream(1)
    chance = random.Random(1)  # values that cannot be packed
    for ms in range(1, 2001):
        stream.append_entry(ms, 0, [b"field", chance.randbytes(50)])
    full = block_bytes() - before
    assert full >= bytes_of(stream)
    meta, blocks = dump_stream(stream)  # the owner of the blocks does not matter
    evict_before(stream, 1001, 0)
    assert block_bytes() - before < 0.75 * full
    loaded = load_stream(meta, blocks, 0)
    assert block_bytes() - before > full
    del stream, loaded, blocks
    assert block_bytes() == before


# ---------------------------------------------------------------- a in_process with a limit


class Limited:
    """A in_process whose memory is what its streams hold, and REST_BYTES."""

    def __init__(
        self, journal: Journal | None = None, blocks: Callable[[], int] | None = None
    ) -> None:
        self.in_process = InProcessServer(journal)
        count = blocks or self.blocks
        gauge = Gauge(lambda: count() + REST_BYTES, count)
        self.eviction = Eviction(
            self.in_process.executor.context,
            gauge,
            lambda: 0,
            lambda: self.in_process.wall_ms / 1000,
        )
        self.player = self.in_process.player()

    def blocks(self) -> int:
        """Exactly, except for open blocks, which also have space for more entries."""
        total = 0
        for db in self.in_process.keyspace.databases:
            for key in db.keys():  # noqa: SIM118
                value = db.get(key)
                total += bytes_of(value) if isinstance(value, Stream) else len(value or b"")
        return total

    def limit(self, size_bytes: int, evicts: bool = True) -> None:
        self.eviction.limit_bytes, self.eviction.evicts = size_bytes, evicts
        self.in_process.executor.eviction_work.limit_memory(self.eviction)
        self.in_process.settle()

    def call(self, line: str) -> Reply:
        return self.player.call(line)

    def fill(self, key: str, first_ms: int, entries: int = 400) -> None:
        for number in range(entries):
            self.call(f"XADD {key} {first_ms + number}-1 field 0123456789")


def lengths(limited: Limited, *keys: str) -> list[Reply]:
    return [limited.call(f"XLEN {key}") for key in keys]


def replays(in_process: InProcessServer) -> None:
    again = in_process.replayed()
    for db, other in zip(in_process.keyspace.databases, again.databases, strict=True):
        assert list(db.keys()) == list(other.keys())
        for key in db.keys():  # noqa: SIM118
            here, there = db.stream(key), other.stream(key)
            assert here is not None
            assert there is not None
            assert here.range() == there.range()
            assert here.max_evicted_id == there.max_evicted_id


def test_keys_in_hidden_slots_are_not_evicted() -> None:
    limited = Limited()
    limited.fill("hidden", 1000, 2000)
    limited.fill("shown", 90_000, 2000)
    full = limited.blocks()
    slot = cluster_slot_of(b"hidden")
    states = limited.in_process.keyspace.slot_states
    states.leave("1f", ((slot, slot),), "s2")
    limited.limit(REST_BYTES + full // 4)
    assert lengths(limited, "hidden", "shown") == [2000, 0]
    states.stay("1f")
    limited.limit(REST_BYTES + full // 8)
    assert 0 < limited.call("XLEN hidden") < 1000  # type: ignore[operator]
    replays(limited.in_process)


def test_the_block_with_the_oldest_newest_entry_goes_first() -> None:
    limited = Limited()
    limited.fill("young", 90_000, 2000)
    limited.fill("old", 10_000, 2000)
    limited.call("SELECT 3")
    limited.fill("oldest", 1000, 2000)
    full = limited.blocks()
    limited.limit(REST_BYTES + full * 5 // 6)
    assert 0 < limited.call("XLEN oldest") < 2000  # type: ignore[operator]
    limited.limit(REST_BYTES + full * 2 // 5)
    assert limited.call("XLEN oldest") == 0
    limited.call("SELECT 0")
    old, young = lengths(limited, "old", "young")
    assert 0 < old < 2000  # type: ignore[operator]
    assert young == 2000
    assert limited.blocks() <= full * 2 // 5
    assert limited.eviction.evicted_entries == 4000 - old  # type: ignore[operator]
    assert limited.in_process.stream(b"old").max_evicted_id == (11_999 - old, 1)  # type: ignore[operator]
    replays(limited.in_process)


def test_appends_continue_while_the_oldest_entries_are_evicted() -> None:
    limited = Limited()
    limited.limit(REST_BYTES + 20_000)
    for number in range(3000):
        assert limited.call(f"XADD s {number + 1}-1 field 0123456789") == b"%d-1" % (number + 1)
        limited.in_process.wall_ms += 1
    assert limited.blocks() <= 20_000
    assert limited.call("XLEN s") == 3000 - limited.eviction.evicted_entries
    assert limited.in_process.stream().last_id == (3000, 1)
    replays(limited.in_process)


def test_without_eviction_only_commands_that_need_memory_fail() -> None:
    limited = Limited()
    limited.fill("s", 1, 10)
    limited.limit(REST_BYTES, evicts=False)
    assert limited.call("XADD s * f v") == OOM
    assert limited.call("TAPPEND s f v") == OOM
    assert limited.call("SET k v") == OOM
    assert limited.call("XLEN s") == 10
    assert limited.call("XTRIM s MAXLEN 9") == 1
    assert limited.call("TPOLICY s MAXLEN 5 EXACT") == Simple("OK")
    assert limited.call("XLEN s") == 5
    assert limited.call("DEL s") == 1
    assert limited.eviction.evicted_entries == 0
    assert limited.call("XADD s * f v") != OOM


@pytest.fixture
def deferring() -> Iterator[None]:
    defer(True)
    yield
    defer(False)


@pytest.mark.usefixtures("deferring")
@pytest.mark.parametrize("evicts", [True, False])
def test_deleted_objects_are_freed_before_evictions_and_refusals(evicts: bool) -> None:
    gc.collect()  # other houses
    limited = Limited(blocks=block_bytes)
    limited.fill("old", 1000, 1000)
    room_bytes = block_bytes() + 50_000
    for number in range(1, 101):  # each in its own block
        limited.call(f"XADD gone {number}-1 n {'v' * 5000}")
    limited.call("DEL gone")
    assert block_bytes() > room_bytes + 50_000, "it is freed later"
    limited.limit(REST_BYTES + room_bytes, evicts)
    assert limited.call("TAPPEND old f v") != OOM
    assert lengths(limited, "old") == [1001]
    assert limited.eviction.evicted_blocks == 0


def test_a_transaction_that_needs_memory_is_refused_as_a_whole() -> None:
    limited = Limited()
    limited.fill("s", 1, 10)
    limited.call("MULTI")
    limited.call("TAPPEND s f v")
    limited.limit(REST_BYTES, evicts=False)
    assert limited.call("EXEC") == Error(
        "EXECABORT Transaction discarded because of: OOM command not allowed when used memory > "
        "'maxmemory'."
    )
    limited.call("MULTI")
    assert limited.call("TAPPEND s f v") == OOM
    assert limited.call("EXEC") == Error(
        "EXECABORT Transaction discarded because of previous errors."
    )
    assert limited.call("XLEN s") == 10


def test_without_any_block_left_commands_that_need_memory_fail() -> None:
    limited = Limited()
    limited.call("SET k " + "v" * 2000)
    limited.fill("s", 1, 10)
    limited.limit(REST_BYTES + 1000)
    assert limited.call("XLEN s") == 0
    assert limited.call("EXISTS s k") == 2
    assert limited.call("XADD s * f v") == OOM
    limited.call("DEL k")
    assert limited.call("XADD s * f v") != OOM


def test_a_lifted_limit_lets_all_requests_run() -> None:
    limited = Limited()
    limited.fill("s", 1, 10)
    limited.limit(REST_BYTES, evicts=False)
    assert limited.call("SET k v") == OOM
    limited.limit(0)
    assert limited.call("SET k v") == Simple("OK")


def test_nothing_is_evicted_while_writes_are_refused() -> None:
    journal = Journal()
    limited = Limited(journal)
    limited.fill("s", 1, 10)
    journal.error = b"MISCONF no"
    limited.limit(REST_BYTES)
    assert limited.call("XLEN s") == 10
    journal.error = None
    limited.in_process.executor.eviction_work.check_memory()
    assert limited.call("XLEN s") == 0


def test_a_slice_drops_a_limited_number_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    limited = Limited()
    limited.in_process.keyspace.node_entries = 1  # four entries a block
    limited.fill("s", 1, 2000)
    slices = []
    drop_some = Eviction._drop_some

    def counted(eviction: Eviction) -> int:
        slices.append(drop_some(eviction))
        return slices[-1]

    monkeypatch.setattr(Eviction, "_drop_some", counted)
    limited.limit(REST_BYTES + 2000)
    assert max(slices) == BLOCKS_AT_ONCE
    assert len(slices) >= 500 // BLOCKS_AT_ONCE
    assert limited.blocks() <= 2000


def test_many_streams_are_all_reached() -> None:
    limited = Limited()
    count = 3 * KEYS_AT_ONCE
    for number in range(count):
        limited.call(f"XADD s{number} {number + 1}-1 f v")
        limited.call(f"SET k{number} v")
    limited.limit(REST_BYTES + 10)
    for _ in range(20):
        limited.in_process.executor.eviction_work.check_memory()
        limited.in_process.settle()
    assert {limited.call(f"XLEN s{number}") for number in range(count)} == {0}
    assert limited.eviction.evicted_entries == count
    assert not limited.eviction.goes_on


def test_eviction_of_many_streams_prefers_the_oldest_blocks() -> None:
    limited = Limited()
    count = 4 * KEYS_AT_ONCE
    numbers = list(range(count))
    random.Random(1).shuffle(numbers)
    for number in numbers:
        limited.call(f"XADD s{number} {number + 1}-1 f v")
    limited.limit(REST_BYTES + limited.blocks() // 2)
    kept = [number for number in range(count) if limited.call(f"XLEN s{number}") == 1]
    assert len(kept) == pytest.approx(count / 2, rel=0.02)
    assert sum(number >= count / 2 for number in kept) >= 0.75 * len(kept)


def test_an_eviction_is_reported_as_a_trim_and_is_no_key_use() -> None:
    limited = Limited()
    limited.fill("s", 1, 10)
    reported = []
    context = limited.in_process.executor.context
    context.events = b"Kt"

    class Host:
        class pubsub:
            @staticmethod
            def keyspace_event(kind: bytes, event: bytes, key: bytes, db: int) -> None:
                reported.append((event, key, db))

    context.server = Host()
    limited.in_process.wall_ms += 10_000
    limited.limit(REST_BYTES)
    assert reported == [(b"xtrim", b"s", 0)]
    assert limited.call("OBJECT IDLETIME s") == 10


def test_a_player_within_its_turn_is_served_in_its_own_database() -> None:
    limited = Limited()
    limited.call("SELECT 1")
    limited.fill("s", 1, 400)
    other: InProcessClient = limited.in_process.player()
    limited.limit(REST_BYTES + limited.blocks() - 1)
    assert other.call("XADD t 1-1 f v") == b"1-1"
    assert limited.in_process.keyspace.databases[0].stream(b"t") is not None


def test_frames_that_wait_for_the_disk_are_not_used_memory() -> None:
    sizes = {"held": 1000, "blocks": 400, "waits": 0}
    gauge = Gauge(lambda: sizes["held"], lambda: sizes["blocks"], lambda: sizes["waits"])
    assert gauge.measure() == 1000
    sizes["waits"], sizes["held"] = 5000, 6000
    assert gauge.measure() == 1000
    assert gauge.estimate() == 1000
    sizes["waits"] = 0  # written: the C library may keep the room
    assert gauge.measure() == 1000
    sizes["blocks"], sizes["waits"] = 900, 4500  # and what comes takes it
    assert gauge.measure() == 1500
    sizes["waits"], sizes["held"] = 0, 1500
    assert gauge.measure() == 1500
