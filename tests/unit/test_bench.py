"""The benchmark's arithmetic: its output has to follow from its measurements."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from bench import (
    datasets,
    fanout_rows,
    figures,
    harness,
    hundred_million,
    load,
    pauses,
    persistence_rows,
    report,
    rows,
    spark,
)
from bench.__main__ import choose, command, listed, parse
from bench.figures import NO_GOAL, OURS, REDIS, BenchError, Goal, Reading
from bench.report import Compared

CSV_HEADER = '"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms"'


def readings(*costs: float, rate: float | None = None) -> list[Reading]:
    return [Reading(cost, rate) for cost in costs]


def row(goal: Goal = NO_GOAL, unit: str = "ns/op") -> harness.Row:
    return harness.Row("a-row", "Section", "a row", lambda _: {}, goal, unit)


# pauses of the machine


def test_only_times_without_any_available_core_are_pauses() -> None:
    one, other = [(1.0, 2.0), (5.0, 6.0), (8.0, 9.0)], [(1.5, 5.5), (7.0, 8.0)]
    assert pauses.common(one, other) == [(1.5, 2.0), (5.0, 5.5)]


def test_a_pause_counts_only_as_far_as_it_overlaps() -> None:
    found = pauses.Pauses()
    found.spans = [(1.0, 2.0), (3.0, 4.0)]
    assert found.within(1.5, 3.25) == 0.75
    assert found.within(2.0, 3.0) == 0


def test_a_single_core_is_not_watched() -> None:
    with pauses.watched_pauses([0]) as found:
        pass
    assert found.spans == []


def test_watchers_end_with_the_measurement() -> None:
    with pauses.watched_pauses(os.sched_getaffinity(0)) as found:
        pass
    assert all(start < end for start, end in found.spans)


# figures


def test_ratio_is_paired_by_round() -> None:
    lanes = {REDIS: readings(10, 20, 90), OURS: readings(5, 5, 30)}
    assert figures.cost_ratio(lanes) == figures.Spread(3.0, 2.0, 4.0)


def test_ratio_of_unequal_rounds_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        figures.cost_ratio({REDIS: readings(1, 2), OURS: readings(1)})


def test_rates_turn_the_other_way_round() -> None:
    lanes = {REDIS: readings(1, 1, rate=100.0), OURS: readings(1, 1, rate=250.0)}
    rate = figures.rate_ratio(lanes)
    assert rate is not None
    assert rate.median == 2.5
    assert figures.rate_ratio({REDIS: readings(1), OURS: readings(1)}) is None


@pytest.mark.parametrize(
    ("goal", "met"),
    [
        (NO_GOAL, None),
        (Goal(ratio=2.0), True),
        (Goal(ratio=2.01), False),
        (Goal(ratio=2.0, rate_ratio=1.0), False),
        (Goal(rate_ratio=0.5), True),
        (Goal(cost_max=5.0), True),
        (Goal(cost_max=4.9), False),
    ],
)
def test_every_part_of_a_goal_must_hold(goal: Goal, met: bool | None) -> None:
    lanes = {REDIS: readings(10, rate=100.0), OURS: readings(5, rate=90.0)}
    assert goal.met(lanes) is met


def test_memory_goal_is_a_share_of_redis() -> None:
    goal = rows.memory_goal(0.60)
    assert goal.met({REDIS: readings(20.0), OURS: readings(11.9)})
    assert not goal.met({REDIS: readings(20.0), OURS: readings(12.1)})


def test_rate_goal_without_rates_is_not_met() -> None:
    assert Goal(rate_ratio=1.0).met({REDIS: readings(1), OURS: readings(1)}) is False


# redis-benchmark


def test_rate_is_read_from_the_csv() -> None:
    output = f'{CSV_HEADER}\n"TAPPEND key a b","636537.25","1.155","0.280","1.223"\n'
    assert load.parse_rate(output) == 636537.25


def test_rate_survives_a_comma_and_warnings() -> None:
    output = f'WARNING: no CONFIG\n{CSV_HEADER}\n"XADD key * a x,y","12.50","1","2","3"\n'
    assert load.parse_rate(output) == 12.5


@pytest.mark.parametrize("output", ["", f"{CSV_HEADER}\n", f'{CSV_HEADER}\n"x","y","1","2","3"\n'])
def test_output_without_a_rate_is_an_error(output: str) -> None:
    with pytest.raises(BenchError):
        load.parse_rate(output)


def test_load_must_fill_its_pipelines() -> None:
    with pytest.raises(ValueError, match="do not fill"):
        load.Load(1000, 16)


def test_warm_up_is_a_tenth_in_whole_pipelines() -> None:
    assert harness.warm_up_of(load.Load(320_000, 16, 7)) == load.Load(32_000, 16, 7)
    assert harness.warm_up_of(load.Load(16, 16)) == load.Load(16, 16)


def test_command_line_carries_words_unchanged() -> None:
    line = load.command_line(7, load.Load(100, 10, 5), ("XADD", "k", "*", "a", "b c"))
    assert line[-5:] == ["XADD", "k", "*", "a", "b c"]
    assert line[line.index("-r") + 1] == "5"
    assert "-r" not in load.command_line(7, load.Load(100), ("PING",))


# data sets


def parsed(data: bytes) -> list[list[bytes]]:
    """The commands in a piece of RESP."""
    commands, at = [], 0
    while at < len(data):
        words, at = _line(data, at)
        command_words = []
        for _ in range(int(words[1:])):
            length, at = _line(data, at)
            end = at + int(length[1:])
            command_words.append(data[at:end])
            assert data[end : end + 2] == b"\r\n"
            at = end + 2
        commands.append(command_words)
    return commands


def _line(data: bytes, at: int) -> tuple[bytes, int]:
    end = data.index(b"\r\n", at)
    return data[at:end], end + 2


def ids_and_fields(data_set: datasets.DataSet, entries: int) -> list[list[bytes]]:
    made = list(datasets.chunks(data_set, entries))
    commands = [words for chunk in made for words in parsed(chunk.data)]
    assert sum(chunk.entries for chunk in made) == len(commands) == entries
    assert all(len(chunk.data) <= datasets.CHUNK_BYTES_MAX for chunk in made)
    return commands


def test_ten_ids_share_a_millisecond() -> None:
    assert datasets.entry_id(0) == "1000000000000-0"
    assert datasets.entry_id(19) == "1000000000001-9"
    assert [datasets.milliseconds(n) for n in (1, 10, 11)] == [1, 1, 2]


@pytest.mark.parametrize("data_set", [datasets.IOT, datasets.LOG, datasets.PAYLOAD])
def test_data_sets_are_well_formed_and_repeatable(data_set: datasets.DataSet) -> None:
    commands = ids_and_fields(data_set, 2_000)
    assert commands == ids_and_fields(data_set, 2_000)
    for index, words in enumerate(commands):
        assert words[:3] == [b"XADD", b"key", datasets.entry_id(index).encode()]
    assert len({tuple(words[3:]) for words in commands}) > 1_900


def test_log_values_have_3_to_22_bytes() -> None:
    values = [word for words in ids_and_fields(datasets.LOG, 2_000) for word in words[4::2]]
    assert len(values) == 20_000
    assert {3, 22} <= {len(value) for value in values} <= set(range(3, 23))


def test_iot_and_payload_values_have_their_shape() -> None:
    for words in ids_and_fields(datasets.IOT, 500):
        assert [len(word) for word in words[3:]] == [6, 2, 11, 4]
    assert all(len(words[4]) == 200 for words in ids_and_fields(datasets.PAYLOAD, 500))


def test_range_data_is_as_random_as_the_iot_entries() -> None:
    words = [w for chunk in datasets.ranges_data(10_000) for w in parsed(chunk.data)]
    assert words == [w for chunk in datasets.ranges_data(10_000) for w in parsed(chunk.data)]
    kinds = {datasets.iot_entry(number) for number in range(datasets.IOT_KINDS)}
    assert len(kinds) == datasets.IOT_KINDS
    seen = {tuple(word.decode() for word in entry[3:]) for entry in words}
    assert seen <= kinds
    assert len(seen) > 9_000


def test_range_data_has_every_id_once_and_in_order() -> None:
    made = list(datasets.ranges_data(12_340))
    ids = [words[2].decode() for chunk in made for words in parsed(chunk.data)]
    assert ids == [datasets.entry_id(index) for index in range(12_340)]
    assert [len(parsed(chunk.data)) for chunk in made] == [chunk.entries for chunk in made]


# harness and rows


def test_range_starts_leave_enough_to_read() -> None:
    assert harness.range_start("head", 1_000, 10) == 0
    assert harness.range_start("tail", 1_000, 10) == 990
    assert harness.range_start("middle", 10_000, 1_000) + 1_000 <= 10_000


def test_ids_of_both_dialects_are_comparable() -> None:
    flat: list[Any] = [["5.1", "field", "value"], ["6.0", "field", "value"]]
    nested: list[Any] = [["5-1", ["field", "value"]], ["6-0", ["field", "value"]]]
    assert harness.ids_of(flat) == harness.ids_of(nested) == ["5-1", "6-0"]
    with pytest.raises(BenchError):
        harness.ids_of(None)


def test_row_names_are_unique_and_titles_fit_the_table() -> None:
    names = [made.name for made in rows.ROWS]
    assert len(set(names)) == len(names)
    assert max(len(made.title) for made in choose(parse(["--large", "100000000"]))) <= 32


def test_rows_of_a_section_follow_each_other() -> None:
    sections = [section for section, _ in itertools.groupby(made.section for made in rows.ROWS)]
    assert len(set(sections)) == len(sections)


def test_the_list_of_rows_has_columns() -> None:
    lines = listed(choose(parse([])))
    fields = [re.split(r"  +", line) for line in lines]
    assert [name for name, _, _ in fields] == [made.name for made in rows.ROWS]
    assert ["seek-large", "Seek", "seek in 20 M entries, -P 100"] in fields


def test_quick_run_leaves_out_the_large_stream() -> None:
    quick = choose(parse(["--quick"]))
    everything = choose(parse([]))
    assert len(everything) == len(rows.ROWS)
    assert [made.name for made in quick] == [m.name for m in rows.ROWS if not m.full_only]
    assert any("20 M" in made.title for made in everything)


def test_only_accepts_a_whole_name_or_a_part() -> None:
    def chosen(text: str) -> list[str]:
        return [made.name for made in choose(parse(["--only", text]))]

    assert chosen("append-p1") == ["append-p1"]
    assert chosen("append-p1,memory-") == [
        "append-p1",
        "memory-iot",
        "memory-log",
        "memory-payload",
        "memory-pending",
    ]
    with pytest.raises(BenchError):
        chosen("no such row")


def test_missing_server_is_named() -> None:
    with pytest.raises(BenchError, match="no-such-server"):
        command("no-such-server --directive value")


def test_self_check_does_not_draw_over_the_real_chart() -> None:
    with pytest.raises(SystemExit):
        parse(["--self-check", "--chart"])


def test_a_comparison_with_an_earlier_build_has_no_chart() -> None:
    with pytest.raises(SystemExit):
        parse(["--earlier", "old/millstream-server", "--chart"])


# fanout_rows and persistence_rows


class StandIn:
    """A server with fixed replies, for the functions that measure it."""

    def __init__(self, answers: list[bytes]) -> None:
        self._answers = answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            for answer in self._answers:
                if not connection.recv(65536):
                    return
                connection.sendall(answer)

    def close(self) -> None:
        self._thread.join()
        self._listener.close()


def test_a_crowd_receives_what_is_sent_to_it() -> None:
    server = StandIn([b"*0\r\n"])
    with fanout_rows.Crowd(server.port, 1) as crowd:
        crowd.wait(b"*1\r\n$4\r\nPING\r\n")
        crowd.hear()
    server.close()


def test_a_crowd_does_not_take_an_error_for_an_entry() -> None:
    server = StandIn([b"-ERR no\r\n"])
    with fanout_rows.Crowd(server.port, 1) as crowd:
        crowd.wait(b"*1\r\n$4\r\nPING\r\n")
        with pytest.raises(BenchError, match="ERR no"):
            crowd.hear()
    server.close()


def info_of(running: int, status: str) -> bytes:
    text = f"rdb_bgsave_in_progress:{running}\r\nrdb_last_bgsave_status:{status}\r\n".encode()
    return b"$%d\r\n%b\r\n" % (len(text), text)


@pytest.mark.parametrize("status", ["ok", "err"])
def test_a_snapshot_is_over_when_the_server_reports_it(status: str) -> None:
    server = StandIn([b"+Background saving started\r\n", info_of(1, "ok"), info_of(0, status)])
    looks = persistence_rows.saving(harness.Side(cast(Any, server), "X"))
    assert next(looks) is None
    if status == "ok":
        assert list(looks) == []
    else:
        server.log_tail = lambda: "no space"  # type: ignore[attr-defined]
        with pytest.raises(BenchError, match="no space"):
            next(looks)
    server.close()


class Answering:
    """A side of which every command but those named has no answer."""

    def __init__(self, **answers: object) -> None:
        self._answers = answers

    def call(self, *words: str) -> object:
        return self._answers[words[0]]

    def range(self, key: str, start: str, count: int) -> tuple[str, ...]:
        return ("TRANGE", key, start, "+", "COUNT", str(count))


@pytest.mark.parametrize(
    ("removed", "first", "right"),
    [(2_000_000, 2_000_000, True), (1_999_999, 2_000_000, False), (2_000_000, 1_999_999, False)],
)
def test_a_wrong_trim_of_the_large_stream_is_noticed(removed: int, first: int, right: bool) -> None:
    walk = hundred_million.Walk(cast(Any, None), 3_000_000)
    entry = [datasets.entry_id(first), "sensor", "01"]
    walk.side = cast(Any, Answering(XTRIM=removed, TRANGE=[entry]))
    if right:
        walk.trim()
    else:
        with pytest.raises(BenchError, match="the trim removed"):
            walk.trim()


def test_the_file_of_the_large_stream_is_verified_by_all_entries() -> None:
    walk = hundred_million.Walk(cast(Any, None), 3_000_000)
    walk.side = cast(Any, SimpleNamespace(server=SimpleNamespace(data_bytes=lambda: 40_000_000)))
    walk.note_file()
    assert walk.figures["file"]["value"] == 10


def test_journals_differ_in_the_sync_alone() -> None:
    always, everysec = (
        persistence_rows.journal_of("always"),
        persistence_rows.journal_of("everysec"),
    )
    assert (always[-1], everysec[-1]) == ("always", "everysec")
    assert always[:-1] == everysec[:-1]
    assert always[:2] == ("--appendonly", "yes")


# report


def outcome(redis: float, ours: float, goal: Goal, unit: str = "ns/op") -> report.Outcome:
    lanes = {REDIS: readings(redis, rate=1e6), OURS: readings(ours, rate=2e6)}
    return report.Outcome(row(goal, unit), lanes)


def test_verdicts() -> None:
    assert outcome(10, 5, Goal(ratio=2)).verdict(Compared.REDIS) == "yes"
    assert outcome(10, 6, Goal(ratio=2)).verdict(Compared.REDIS) == "no"
    assert outcome(10, 6, NO_GOAL).verdict(Compared.REDIS) == "-"
    assert outcome(10, 9.9, Goal(ratio=2)).verdict(Compared.SELF) == "yes"
    assert outcome(10, 5, Goal(ratio=2)).verdict(Compared.SELF) == "no"
    assert outcome(10, 10.1, Goal(ratio=2)).verdict(Compared.EARLIER) == "yes"
    assert outcome(10, 10.3, Goal(ratio=0.5)).verdict(Compared.EARLIER) == "no"
    assert outcome(1, 2, Goal(cost_max=3)).verdict(Compared.EARLIER) == "-"
    assert report.Outcome(row(), failure="broke").verdict(Compared.REDIS) == "failed"


def test_table_line_shows_costs_ratio_goal_and_verdict() -> None:
    line = report.table_line(outcome(12_400, 5_000, Goal(ratio=2)), Compared.REDIS)
    cells = "a row 12.4 us 5,000 ns 2.48 (2.48-2.48) >= 2.00 yes 1,000,000 2,000,000"
    assert " ".join(line.split()) == cells


def test_the_summary_names_missed_goals() -> None:
    text = report.summary([outcome(10, 6, Goal(ratio=2))], Compared.REDIS, 61.4)
    assert text == "0 of 1 rows meet their goal, in 61 s. Not: a-row."


def full_report() -> dict[str, Any]:
    outcomes = [outcome(10, 5, Goal(ratio=2, rate_ratio=1)), report.Outcome(row(), failure="broke")]
    machine = report.machine_facts({REDIS: "7.0.15", OURS: "1.2.3"})
    method = {"quick": True, "rounds": 3}
    return report.as_json(outcomes, machine, method, compared=Compared.REDIS, seconds=1.0)


def test_json_keeps_rounds_facts_and_failures(tmp_path: Path) -> None:
    report.write_json(full_report(), tmp_path / "made" / "latest.json")
    kept = json.loads((tmp_path / "made" / "latest.json").read_text())
    measured, failed = kept["rows"]
    assert measured["ratio"]["median"] == 2.0
    assert measured["redis"]["rounds"] == [{"cost": 10, "ops_per_s": 1e6}]
    assert failed["failure"] == "broke"
    assert {"cpu", "cores", "kernel", "python", "redis", "millstream"} <= set(kept["machine"])
    assert "millstream 1.2.3" in report.machine_line(kept)


needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is in the bench extra"
)


@needs_matplotlib
def test_chart_is_the_same_for_the_same_report(tmp_path: Path) -> None:
    from bench import chart

    made = full_report()
    first, second = chart.write(made, tmp_path / "a"), chart.write(made, tmp_path / "b")
    assert [path.suffix for path in first] == [".svg", ".png"]
    assert first[0].read_bytes() == second[0].read_bytes()


@needs_matplotlib
def test_the_chart_omits_rows_that_redis_does_not_have() -> None:
    from bench import chart

    made = full_report()
    (compared,) = chart.shown(made)
    alone = json.loads(json.dumps(compared))
    alone["redis"]["cost"] = dict.fromkeys(("median", "low", "high"), 1.0)
    made["rows"].append(alone)
    assert chart.shown(made) == [compared]


CORE_ONLY_MAX = 29


def listed_rows(cell: str) -> set[str]:
    return set() if cell == "none" else set(cell.split(", "))


def test_the_list_of_compiled_modules_is_complete_and_names_rows() -> None:
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "compiled-modules.md").read_text()
    table = re.findall(r"^\| `([\w/]+)` \| (.+) \| (.+) \|$", page, re.MULTILINE)
    listed = {name: (listed_rows(first), listed_rows(second)) for name, first, second in table}
    folders = ("server", "storage", "commands", "pipeline", "client")
    sources = [path for folder in folders for path in (root / folder).rglob("*.pyx")]
    sources += (root / "src" / "millstream").glob("*.pyx")
    assert set(listed) == {str(path.relative_to(root).with_suffix("")) for path in sources}

    names = {row.name for row in rows.ROWS} | {f"spark {row.name}" for row in spark.ROWS}
    lines = (root / "bench" / "core_rows.txt").read_text().splitlines()
    core = {line for line in lines if not line.startswith("#")}
    assert core - names == set()
    assert set().union(*(first for first, _ in listed.values())) - core == set()
    assert set().union(*(second for _, second in listed.values())) - (names - core) == set()

    core_only = [name for name, (_, second) in listed.items() if not second]
    assert len(core_only) <= CORE_ONLY_MAX
    assert f"at most {CORE_ONLY_MAX}, and at present {len(core_only)}." in page
