"""Scheduled entries: the structure, TSCHEDULE, TSCHEDULED and TCANCEL, and firing.

The structure is compared with a dict over random steps. After every test of commands, the effects
must lead to the same streams as the commands did, and so must a dump.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.effort import examples
from tests.support.fakedisk import FakeDisk
from tests.support.in_process import NOW_MS, InProcessClient, InProcessServer
from tests.support.resp import Error, Null, Reply, Simple
from tests.support.small_data import CREATED_MS, ID, write_base

from millstream.errors import EXHAUSTED, WRONG_TYPE
from millstream.server.execution import due_work
from millstream.server.repair.inspecting import inspect_directory
from millstream.storage.blocks.lazyfree import TO_FREE, defer, free_step
from millstream.storage.capture.ordering_snapshot import ordering_meta
from millstream.storage.files.manifest import Manifest, store_manifest
from millstream.storage.files.snapshot_reader import SnapshotReader
from millstream.storage.streams.schedule import Schedule
from millstream.storage.streams.schedule_snapshot import SharedSchedule, load
from millstream.storage.streams.stream import Stream

OK = Simple("OK")
SYNTAX = "ERR syntax error"
NOT_INTEGER = "ERR value is not an integer or out of range"
INVALID_ID = "ERR Invalid stream ID specified as stream command argument"
ARITY = "ERR wrong number of arguments for '{}' command"
BAD_TIME = "ERR invalid expire time in 'tschedule' command"
HAS_SCHEDULED = "ERR the stream has scheduled entries: cancel them, or wait until they are due"
TOP = (2**64 - 1, 2**64 - 1)

Row = tuple[int, int, bytes | None, list[bytes]]

# ---------------------------------------------------------------- the structure


def rows(schedule: Schedule) -> list[Row]:
    return [(e.due_ms, e.number, e.name, e.fields) for page in schedule.share() for e in page]


STEP = st.tuples(
    st.sampled_from(
        ["put", "put", "put", "put_many", "cancel", "name", "first", "between", "share"]
    ),
    st.integers(0, 40),
    st.integers(0, 2**16),
)


@settings(max_examples=examples(25))
@given(st.lists(STEP, max_size=25))
def test_a_schedule_is_a_dict_by_ticket(steps: list[tuple[str, int, int]]) -> None:
    schedule = Schedule()
    model: dict[tuple[int, int], tuple[bytes | None, list[bytes]]] = {}
    shown: list[tuple[list[Row], SharedSchedule]] = []

    def put(due_ms: int, name: bytes | None, fields: list[bytes]) -> None:
        number = schedule.last_number + 1
        schedule.put(due_ms, number, name, fields)
        model[due_ms, number] = name, fields

    def expected() -> list[Row]:
        return [(*ticket, *model[ticket]) for ticket in sorted(model)]

    for kind, small, large in steps:
        if kind == "put":
            put(small, None, [b"f", b"v" * large])
        elif kind == "put_many":
            chance = random.Random(large)
            for _ in range(700):
                put(chance.randint(0, 50), None, [b"n", b"%d" % large])
        elif kind == "cancel" and model:
            ticket = sorted(model)[large % len(model)]
            entry = schedule.entry(*ticket)
            assert entry is not None
            schedule.cancel(entry)
            del model[ticket]
            assert schedule.entry(*ticket) is None
        elif kind == "name":
            name = b"%d" % small
            old = schedule.entry_named(name)
            known = [ticket for ticket, (known, _) in model.items() if known == name]
            assert known == ([] if old is None else [(old.due_ms, old.number)])
            if old is not None:
                schedule.cancel(old)
                del model[known[0]]
            put(large, name, [b"f" * small, b"", b"g", b"w"])
        elif kind == "first":
            assert schedule.next_due_ms == min((due for due, _ in model), default=2**64 - 1)
        elif kind == "between":
            start, end, limit = (small, large % 900), (small + large % 7, large % 1100), large % 999
            found = [(e.due_ms, e.number) for p in schedule.between(start, end, limit) for e in p]
            assert found == [t for t in sorted(model) if start <= t <= end][:limit]
        else:
            shown.append((expected(), SharedSchedule(schedule)))
    assert rows(schedule) == expected()
    assert len(schedule) == len(model)
    assert schedule.size_bytes >= sum(
        16 + len(name or b"") + sum(map(len, fields)) for name, fields in model.values()
    )
    for was, shared in shown:  # later steps did not change them
        assert rows(load(shared.dump())) == was


def test_a_schedule_takes_120_bytes_and_its_fields() -> None:
    import tracemalloc

    schedule = Schedule()
    tracemalloc.start()
    for number in range(1, 4_001):
        schedule.put(1_700_000_000_000 + number, number, None, [b"field", b"%08d" % number])
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / 4_000 <= 120 + 13
    assert 0.8 <= schedule.memory_bytes / used <= 1.2


def test_a_large_schedule_is_freed_in_steps() -> None:
    schedule = Schedule()
    for number in range(1, 3001):
        schedule.put(number, number, b"%d" % number, [b"f", b"v"])
    shared = SharedSchedule(schedule)
    defer(True)
    try:
        del schedule
        assert TO_FREE
        steps = 0
        while free_step(512):
            steps += 1
        assert steps > 6
        assert len(rows(load(shared.dump()))) == 3000
    finally:
        defer(False)


@pytest.mark.parametrize(
    "meta",
    [
        {"last_number": 1, "entries": [msgpack.packb([[5, 2, None, b"f", b"v"]])]},
        {"last_number": 2, "entries": [msgpack.packb([[5, 2, None, b"f", b"v"]] * 2)]},
        {"last_number": 2, "entries": [msgpack.packb([[5, 0, None, b"f", b"v"]])]},
        {"last_number": 2, "entries": [msgpack.packb([[5, 2, None, b"f"]])]},
        {"last_number": 2, "entries": [msgpack.packb([[5, 2, None]])]},
        {"last_number": 2,
         "entries": [msgpack.packb([[5, 1, b"n", b"f", b"v"], [6, 2, b"n", b"f", b"v"]])]},
        {"last_number": 2**63, "entries": []},  # the number of the next ticket would be too large
        {"last_number": 2**64 - 1, "entries": []},
    ],
)  # fmt: skip
def test_an_inconsistent_schedule_is_not_loaded(meta: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"schedule|ticket|name"):
        load(meta)


# ---------------------------------------------------------------- commands


def shown(stream: Stream) -> object:
    schedule = stream.schedule
    found = (
        None if schedule is None else (schedule.last_number, schedule.size_bytes, rows(schedule))
    )
    return stream.range(), found


@pytest.fixture
def s(in_process: InProcessServer, player: InProcessClient) -> Iterator[InProcessClient]:
    """A client. At the end, its commands are compared with their effects."""
    yield player
    again = in_process.replayed()
    for db, other in zip(in_process.keyspace.databases, again.databases, strict=True):
        assert list(db.keys()) == list(other.keys())
        assert db.scheduled == other.scheduled
        count = 0
        for key in db.keys():  # noqa: SIM118
            stream = db.get(key)
            if isinstance(stream, Stream):
                same = other.stream(key)
                assert same is not None
                assert shown(same) == shown(stream)
                if stream.schedule is not None:
                    count += len(stream.schedule)
                    saved = ordering_meta(stream)["schedule"].dump()
                    assert rows(load(saved)) == rows(stream.schedule)
        assert db.scheduled == count


def length(s: InProcessClient, key: str = "s") -> Reply:
    return s.call(f"XLEN {key}")


def values(s: InProcessClient, key: str = "s") -> list[Reply]:
    found = s.call(f"XRANGE {key} - +")
    assert isinstance(found, list)
    return [entry[1][-1] for entry in found]  # type: ignore[union-attr, index, misc]


def test_an_entry_is_appended_at_its_time(in_process: InProcessServer, s: InProcessClient) -> None:
    assert s.call('TSCHEDULE s IN 50 "" n 1') == b"%d.1" % (NOW_MS + 50)
    assert s.call(f'TSCHEDULE s AT {NOW_MS + 20} "" n 2') == b"%d.2" % (NOW_MS + 20)
    assert s.call("EXISTS s") == 1
    assert s.call("TYPE s") == Simple("stream")
    in_process.wait_ms(19)
    assert length(s) == 0
    in_process.wait_ms(1)
    assert s.call("XRANGE s - +") == [[b"%d-0" % (NOW_MS + 20), [b"n", b"2"]]]
    in_process.wait_ms(30)
    assert values(s) == [b"2", b"1"]
    assert in_process.keyspace.scheduled_fired == 2


def test_equal_times_fire_by_number(in_process: InProcessServer, s: InProcessClient) -> None:
    for number in range(1, 13):
        s.call(f'TSCHEDULE s AT {NOW_MS + 5} "" n {number}')
    s.call(f'TSCHEDULE s AT {NOW_MS + 4} "" n 0')
    in_process.wait_ms(5)
    assert values(s) == [b"%d" % number for number in range(13)]


@pytest.mark.parametrize("when", [f"AT {NOW_MS}", "AT 0", "IN 0", f"AT {NOW_MS - 5}"])
def test_a_passed_time_appends_before_the_reply(s: InProcessClient, when: str) -> None:
    due_ms = NOW_MS if when == "IN 0" else int(when[3:])
    assert s.call(f'TSCHEDULE s {when} "" n 1') == b"%d.1" % due_ms
    assert s.call("XRANGE s - +") == [[b"%d-0" % NOW_MS, [b"n", b"1"]]]
    assert s.call("TSCHEDULED s - +") == []
    assert s.in_process.keyspace.scheduled_fired == 1
    assert s.call('TSCHEDULE s IN 1 "" n 2') == b"%d.2" % (NOW_MS + 1)


def test_a_name_is_unique_in_its_stream(in_process: InProcessServer, s: InProcessClient) -> None:
    s.call("TSCHEDULE s IN 100 mail n 1")
    s.call("TSCHEDULE t IN 100 mail n 2")
    assert s.call("TSCHEDULE s IN 50 mail n 3") == b"%d.2" % (NOW_MS + 50)
    assert s.call("TSCHEDULED s - +") == [[b"%d.2" % (NOW_MS + 50), b"mail", b"n", b"3"]]
    in_process.wait_ms(100)
    assert values(s) == [b"3"]
    assert values(s, "t") == [b"2"]
    # The name is free after the firing.
    s.call("TSCHEDULE s IN 5 mail n 4")
    in_process.wait_ms(5)
    assert values(s) == [b"3", b"4"]


def test_a_passed_time_cancels_the_older_one(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TSCHEDULE s IN 100 mail n 1")
    assert s.call("TSCHEDULE s AT 7 mail n 2") == b"7.2"
    assert s.call("TCANCEL s NAME mail") == 0
    assert in_process.keyspace.scheduled_fired == 1
    in_process.wait_ms(100)
    assert values(s) == [b"2"]


def test_a_passed_time_comes_after_what_is_due_before(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TSCHEDULE s IN 9 later n 5")
    s.call("TSCHEDULE s IN 5 first n 1")
    s.call("TSCHEDULE s IN 6 mail n 0")
    s.call("TSCHEDULE s IN 7 second n 2")
    in_process.wall_ms += 20  # the timer is late
    assert s.call(f"TSCHEDULE s AT {NOW_MS + 7} mail n 3") == b"%d.5" % (NOW_MS + 7)
    assert values(s) == [b"1", b"2", b"3"]
    s.call(f'TSCHEDULE s AT {NOW_MS + 8} "" n 4')
    in_process.wait_ms(0)
    assert values(s) == [b"1", b"2", b"3", b"4", b"5"]


def test_a_passed_time_waits_for_many_earlier_ones(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    for number in range(502):
        s.call(f"TSCHEDULE s IN 5 x{number} n {number}")
    in_process.wall_ms += 20
    assert s.call(f'TSCHEDULE s AT {NOW_MS + 5} "" n 502') == b"%d.503" % (NOW_MS + 5)
    assert length(s) == 500
    in_process.wait_ms(0)
    assert values(s) == [b"%d" % number for number in range(503)]


def test_entries_without_a_name_are_separate(s: InProcessClient) -> None:
    s.call('TSCHEDULE s IN 5 "" n 1')
    s.call('TSCHEDULE s IN 5 "" n 1')
    assert s.call('TCANCEL s NAME ""') == 0
    assert len(s.call("TSCHEDULED s - +")) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("TSCHEDULE s IN 5 n f", ARITY.format("tschedule")),
        ("TSCHEDULE s IN 5 n f v g", ARITY.format("tschedule")),
        ("TSCHEDULE s ON 5 n f v", SYNTAX),
        ("TSCHEDULE s IN x n f v", NOT_INTEGER),
        ("TSCHEDULE s AT 1.5 n f v", NOT_INTEGER),
        ("TSCHEDULE s IN -1 n f v", BAD_TIME),
        ("TSCHEDULE s AT -1 n f v", BAD_TIME),
        (f"TSCHEDULE s IN {2**63 - 1} n f v", BAD_TIME),
        (f"TSCHEDULE s IN 5 {'n' * 1025} f v", "ERR a name must have at most 1024 bytes"),
        ("TSCHEDULE text IN 5 n f v", WRONG_TYPE),
        ("TSCHEDULED s -", ARITY.format("tscheduled")),
        ("TSCHEDULED s - x", INVALID_ID),
        ("TSCHEDULED s - + COUNT", SYNTAX),
        ("TSCHEDULED s - + COUNT x", NOT_INTEGER),
        ("TSCHEDULED s - + LIMIT 1", SYNTAX),
        ("TSCHEDULED s - + COUNT 1 COUNT 2", f"{SYNTAX}, COUNT is given twice"),
        ("TSCHEDULED s (+ +", INVALID_ID),
        ("TSCHEDULED text - +", WRONG_TYPE),
        ("TCANCEL s", ARITY.format("tcancel")),
        ("TCANCEL s NAME", SYNTAX),
        ("TCANCEL s 5.1 x", INVALID_ID),
        ("TCANCEL text 5.1", WRONG_TYPE),
    ],
)  # fmt: skip
def test_a_malformed_request_changes_nothing(s: InProcessClient, line: str, error: str) -> None:
    s.call("SET text x")
    frames = len(s.in_process.persistence.payloads)
    reply = s.call(line)
    assert isinstance(reply, Error)
    assert reply.text.startswith(error)
    assert s.call("EXISTS s") == 0
    assert len(s.in_process.persistence.payloads) == frames


def test_the_longest_name_is_taken(s: InProcessClient) -> None:
    name = "n" * 1024
    s.call(f"TSCHEDULE s IN 5 {name} f v")
    assert s.call(f"TCANCEL s NAME {name}") == 1


def test_the_list_is_limited_by_tickets_as_xrange(s: InProcessClient) -> None:
    for due_ms in (20, 10, 20, 30):
        s.call(f'TSCHEDULE s AT {NOW_MS + due_ms} "" f v')

    def tickets(line: str) -> list[tuple[int, int]]:
        found = s.call(f"TSCHEDULED s {line}")
        assert isinstance(found, list)
        texts = [row[0].split(b".") for row in found]  # type: ignore[index, union-attr, misc]
        return [(int(due) - NOW_MS, int(number)) for due, number in texts]

    everything = [(10, 2), (20, 1), (20, 3), (30, 4)]
    assert tickets("- +") == everything
    assert tickets("- + COUNT 2") == everything[:2]
    assert tickets("- + COUNT 0") == tickets("- + COUNT -1") == []
    assert tickets(f"{NOW_MS + 20} {NOW_MS + 20}") == everything[1:3]
    assert tickets(f"({NOW_MS + 20}.1 +") == everything[2:]
    assert tickets(f"- ({NOW_MS + 20}-3") == everything[:2]
    assert tickets("+ -") == []
    assert s.call("TSCHEDULED none - +") == []


def test_cancelling_counts_each_entry_once(in_process: InProcessServer, s: InProcessClient) -> None:
    one = f"{NOW_MS + 5}.1"
    for number in range(1, 5):
        s.call(f"TSCHEDULE s IN 5 name{number} n {number}")
    assert s.call(f"TCANCEL s {one} {one.replace('.', '-')} 1.1 {NOW_MS + 5}") == 1
    assert s.call("tcancel s name name2 name2 name1 other") == 1
    assert s.call("TCANCEL none 5.1") == 0
    in_process.wait_ms(5)
    assert values(s) == [b"3", b"4"]
    assert s.call(f"TCANCEL s {NOW_MS + 5}.3") == 0


def test_a_stream_whose_schedules_were_cancelled_stays(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TSCHEDULE s IN 5 x f v")
    assert s.call("TCANCEL s NAME x") == 1
    in_process.wait_ms(10)
    assert (s.call("EXISTS s"), length(s)) == (1, 0)
    # A ticket is never used again.
    assert s.call("TSCHEDULE s IN 5 x f v") == b"%d.2" % (NOW_MS + 15)


def test_tinfo_and_info_count_scheduled_entries(s: InProcessClient) -> None:
    def facts() -> list[Reply]:
        found = s.call("TINFO s")
        assert isinstance(found, list)
        return found[-8:-4]

    s.call("XADD s 1-1 f v")
    assert facts() == [b"scheduled", 0, b"next-scheduled", Null.BULK]
    s.call("TSCHEDULE s IN 70 x f v")
    s.call("TSCHEDULE s IN 60 y f v")
    s.call("SELECT 3")
    s.call("TSCHEDULE s IN 50 z f v")
    s.call("SELECT 0")
    assert facts() == [b"scheduled", 2, b"next-scheduled", NOW_MS + 60]
    assert s.in_process.keyspace.scheduled_entries() == 3


# ---------------------------------------------------------------- limits


def test_a_full_stream_refuses_entries(in_process: InProcessServer, s: InProcessClient) -> None:
    in_process.keyspace.scheduled_max = 2
    s.call("TSCHEDULE s IN 50 x n 1")
    s.call('TSCHEDULE s IN 50 "" n 2')
    refused = s.call("TSCHEDULE s IN 50 y n 3")
    assert refused == Error(
        "STALLED 2 entries are scheduled, at most 2 can be; cancel some, or wait until they are due"
    )
    # One takes the place of another, and a passed time needs none.
    assert s.call("TSCHEDULE s IN 60 x n 4") == b"%d.3" % (NOW_MS + 60)
    assert s.call("TSCHEDULE s IN 0 z n 5") == b"%d.4" % NOW_MS
    assert isinstance(s.call("TSCHEDULE t IN 50 x n 1"), bytes)
    in_process.wait_ms(50)
    assert isinstance(s.call("TSCHEDULE s IN 50 y n 6"), bytes)
    in_process.keyspace.scheduled_max = 0
    assert isinstance(s.call('TSCHEDULE s IN 50 "" n 7'), bytes)


def test_entries_of_too_many_bytes_are_refused(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    in_process.keyspace.scheduled_max_bytes = 300
    assert isinstance(s.call(f"TSCHEDULE s IN 50 x n {'v' * 200}"), bytes)
    frames = len(in_process.persistence.payloads)
    reply = s.call(f"TSCHEDULE s IN 50 y n {'v' * 200}")
    assert isinstance(reply, Error)
    assert reply.text.startswith("STALLED entries of 22")
    assert isinstance(s.call(f"TSCHEDULE none IN 50 y n {'v' * 400}"), Error)
    assert s.call("EXISTS none") == 0
    assert len(in_process.persistence.payloads) == frames
    assert isinstance(s.call(f"TSCHEDULE s IN 50 x n {'v' * 250}"), bytes)
    s.call("TCANCEL s NAME x")
    assert in_process.stream().schedule.size_bytes == 0  # type: ignore[union-attr]


def test_a_sealed_stream_takes_no_schedules(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TSCHEDULE s IN 50 x n 1")
    assert s.call("TSEAL s") == Error(HAS_SCHEDULED)
    in_process.wait_ms(50)
    assert isinstance(s.call("TSEAL s"), bytes)
    for when in ("IN 5", "IN 0"):
        reply = s.call(f"TSCHEDULE s {when} x n 2")
        assert isinstance(reply, Error)
        assert reply.text.startswith("SEALED ")
    assert s.call("TCANCEL s NAME x") == 0


# ---------------------------------------------------------------- firing


def test_a_fired_entry_wakes_readers(in_process: InProcessServer, s: InProcessClient) -> None:
    plain, grouped = in_process.player(), in_process.player()
    s.call("XGROUP CREATE s g $ MKSTREAM")
    s.call("TSCHEDULE s IN 50 x n 1")
    plain.send("XREAD BLOCK 0 STREAMS s $")
    grouped.send("XREADGROUP GROUP g a BLOCK 0 STREAMS s >")
    in_process.wait_ms(50)
    for reader in (plain, grouped):
        assert reader.read() == [[b"s", [[b"%d-0" % (NOW_MS + 50), [b"n", b"1"]]]]]


def test_an_open_reservation_holds_a_fired_entry(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TSCHEDULE s IN 50 x n 1")
    reserved = s.call("TRESERVE s w")
    in_process.wait_ms(50)
    assert length(s) == 0
    assert s.call("TSCHEDULED s - +") == []
    assert isinstance(reserved, bytes)
    s.call(f"TABORT s w {reserved.decode()}")
    assert values(s) == [b"1"]


def test_a_policy_trims_at_the_firing(in_process: InProcessServer, s: InProcessClient) -> None:
    for number in range(4):
        s.call(f"TSCHEDULE s IN {10 + number} x{number} n {number}")
    s.call("TPOLICY s MAXLEN 2 EXACT")
    in_process.wait_ms(20)
    assert values(s) == [b"2", b"3"]


def test_overdue_entries_fire_in_slices(
    in_process: InProcessServer, s: InProcessClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_work, "FIRED_MAX", 4)
    for number in range(9):
        s.call(f"TSCHEDULE s IN {9 - number} x{number} n {number}")
    s.call("TSCHEDULE t IN 1 x n 9")
    counts = [0]
    in_process.wait_ms(50)
    while s.in_process.keyspace.scheduled_entries():
        counts.append(length(s))  # type: ignore[arg-type]
        in_process.wait_ms(0)
    assert len(counts) == 3
    assert counts == sorted(counts)
    assert values(s) == [b"%d" % number for number in range(8, -1, -1)]
    assert values(s, "t") == [b"9"]


def test_large_entries_end_a_slice(
    in_process: InProcessServer, s: InProcessClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_work, "FIRED_BYTES_MAX", 1000)
    for number in range(5):
        s.call(f"TSCHEDULE s IN 5 x{number} n {'v' * 600}")
    in_process.wait_ms(5)
    assert length(s) == 2
    in_process.wait_ms(0)
    assert length(s) == 4


def test_an_entry_with_many_fields_fires(in_process: InProcessServer, s: InProcessClient) -> None:
    fields = " ".join(f"f{number} v{number}" for number in range(200))
    s.call(f"TSCHEDULE s IN 5 x {fields}")
    in_process.wait_ms(5)
    [[_, words]] = s.call("XRANGE s - +")  # type: ignore[misc]
    assert words == [word.encode() for word in fields.split()]


def test_nothing_fires_while_changes_are_refused(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TSCHEDULE s IN 5 x n 1")
    in_process.persistence.error = b"MISCONF no space"
    in_process.wait_ms(50)
    assert length(s) == 0
    in_process.persistence.error = None
    in_process.wait_ms(0)
    assert values(s) == [b"1"]


def test_schedules_follow_the_wall_clock(in_process: InProcessServer, s: InProcessClient) -> None:
    s.call("TSCHEDULE s IN 3600000 x n 1")
    s.call("TSCHEDULE s IN 100 y n 2")
    in_process.wait_ms(-50_000)
    in_process.wait_ms(1000)
    assert length(s) == 0
    in_process.wait_ms(3_700_000)
    assert values(s) == [b"2", b"1"]


def test_a_stream_that_cannot_take_entries_keeps_them(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TSCHEDULE s IN 5 x n 1")
    s.call("XADD s 18446744073709551615-18446744073709551615 n 0")
    for when in ("IN 5", "AT 5"):
        assert s.call(f"TSCHEDULE s {when} y n 2") == Error(EXHAUSTED)
    in_process.wait_ms(5)
    in_process.wait_ms(999)
    assert s.in_process.keyspace.scheduled_entries() == 1
    assert [line for line in in_process.logged if "cannot be appended" in line]
    s.call("XSETID s 18446744073709551615-18446744073709551614")
    in_process.wait_ms(1)
    assert values(s)[-1:] in ([b"1"], [b"0"])


def test_a_firing_that_failed_is_retried(
    in_process: InProcessServer, s: InProcessClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: object) -> None:
        raise MemoryError

    s.call("TSCHEDULE s IN 5 x n 1")
    monkeypatch.setattr(due_work, "firing_moment", broken)
    in_process.wait_ms(5)
    monkeypatch.undo()
    in_process.wait_ms(999)
    assert length(s) == 0
    in_process.wait_ms(1)
    assert values(s) == [b"1"]


# ---------------------------------------------------------------- keys


def test_rename_and_move_take_schedules_along(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TSCHEDULE s IN 50 x n 1")
    assert s.call("RENAME s t") == OK
    assert s.call("MOVE t 2") == 1
    assert [db.scheduled for db in in_process.keyspace.databases[:3]] == [0, 0, 1]
    in_process.wait_ms(50)
    s.call("SELECT 2")
    assert values(s, "t") == [b"1"]
    s.call("SELECT 0")
    assert s.call("EXISTS s t") == 0


def test_a_rename_replaces_the_schedules_of_its_target(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TSCHEDULE s IN 50 x n 1")
    s.call("TSCHEDULE t IN 40 x n 2")
    s.call("RENAME s t")
    in_process.wait_ms(45)
    assert length(s, "t") == 0
    in_process.wait_ms(5)
    assert values(s, "t") == [b"1"]


def test_swapdb_takes_schedules_along(in_process: InProcessServer, s: InProcessClient) -> None:
    s.call("TSCHEDULE s IN 50 x n 1")
    s.call("SWAPDB 0 1")
    s.call("TSCHEDULE s IN 40 x n 2")
    in_process.wait_ms(50)
    assert values(s) == [b"2"]
    s.call("SELECT 1")
    assert values(s) == [b"1"]


def test_a_copy_has_no_schedules(in_process: InProcessServer, s: InProcessClient) -> None:
    s.call("XADD s 1-1 n 0")
    s.call("TSCHEDULE s IN 50 x n 1")
    assert s.call("COPY s t") == 1
    in_process.wait_ms(50)
    assert values(s) == [b"0", b"1"]
    assert values(s, "t") == [b"0"]


@pytest.mark.parametrize(
    "line", ["DEL s", "UNLINK s", "FLUSHDB", "FLUSHALL", "PEXPIRE s 5", "SET s x"]
)
def test_a_key_that_goes_drops_its_schedules(
    in_process: InProcessServer, s: InProcessClient, line: str
) -> None:
    s.call("TSCHEDULE s IN 50 x n 1")
    s.call(line)
    in_process.wait_ms(10)
    assert in_process.keyspace.scheduled_entries() == 0
    s.call("DEL s")
    s.call("XADD s 1-1 n 0")
    in_process.wait_ms(50)
    assert values(s) == [b"0"]


def test_a_transaction_schedules_all_or_nothing(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    watcher = in_process.player()
    for command in ("TSCHEDULE s IN 50 y n 3", "TCANCEL s NAME x", "TSCHEDULE s IN 0 x n 4"):
        s.call("TSCHEDULE s IN 50 x n 1")
        watcher.call("WATCH s")
        s.call(command)
        watcher.call("MULTI")
        watcher.call("TSCHEDULE s IN 50 z n 2")
        assert watcher.call("EXEC") is Null.ARRAY
    watcher.call("WATCH s")
    watcher.call("MULTI")
    watcher.call("TSCHEDULE s IN 50 z n 2")
    watcher.call("TSCHEDULED s - + COUNT 1")
    watcher.call("TCANCEL s NAME z")
    scheduled, [first], cancelled = watcher.call("EXEC")  # type: ignore[misc]
    assert scheduled == b"%d.6" % (NOW_MS + 50)
    assert first == [b"%d.2" % (NOW_MS + 50), b"y", b"n", b"3"]
    assert cancelled == 1


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("has_schedule", [False, True])
def test_a_base_with_schedules_has_version_5(player: InProcessClient, has_schedule: bool) -> None:
    player.call("XADD s 1-1 n 1")
    if has_schedule:
        player.call("TSCHEDULE s IN 500 x n 2")
    disk = FakeDisk()
    write_base(disk, "base-1.msnap", player.in_process.keyspace, 0)
    store_manifest(disk, Manifest("base-1.msnap", (), 2, ID))
    header = SnapshotReader(disk.read("base-1.msnap")).read_header()
    assert header.version == (5 if has_schedule else 4)
    for journals in (False, True):
        [row] = inspect_directory(
            disk, journals=journals, pattern=None, limit=9, now_ms=CREATED_MS
        ).rows
        assert row.scheduled == has_schedule
        assert row.next_scheduled_ms == (NOW_MS + 500 if has_schedule else None)
