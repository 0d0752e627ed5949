"""The Spark rows of the benchmark: rates, ratios and goals follow from the measurements."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from bench import spark
from bench.figures import BenchError
from bench.server import cpu_s_between, family_cpu_ticks
from bench.spark import Lane, Outcome, Row, check_same, row_json, table

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def row(rate: float | None = None, ratio: float | None = None, same_streams: bool = True) -> Row:
    return Row("a-row", "a row", lambda _: {}, rate, ratio, same_streams)


def lane(entries: int, *answer: tuple[Any, ...]) -> Lane:
    nothing: Any = None
    return Lane(entries, lambda: nothing, lambda _: None, lambda _: list(answer))


def test_a_ratio_compares_the_first_lane_with_another_by_round() -> None:
    outcome = Outcome(row(), {"ours": [10.0, 30.0, 20.0], "theirs": [5.0, 5.0, 20.0]})
    assert outcome.ratio("theirs") == spark.Spread(2.0, 1.0, 6.0)


@pytest.mark.parametrize(
    ("rate", "ratio", "met"),
    [
        (None, None, None),
        (2.0, None, True),
        (2.1, None, False),
        (None, 4.0, True),
        (None, 4.1, False),
        (2.0, 4.1, False),
    ],
)
def test_every_part_of_a_goal_must_hold(
    rate: float | None, ratio: float | None, met: bool | None
) -> None:
    rates = {"ours": [2e6, 2e6, 9e6], "between": [1.0, 1.0, 1.0], "last": [5e5, 5e5, 5e5]}
    assert Outcome(row(rate, ratio), rates).meets_goal() is met


def test_the_table_and_the_json_show_a_missed_goal() -> None:
    outcome = Outcome(row(rate=1.5), {"ours": [1e6], "theirs": [2e6]})
    first, second = table(outcome).splitlines()
    assert first.endswith(">= 1.5 M: no")
    assert "0.50 (0.50-0.50)" in second
    made = row_json(outcome)
    assert made["meets_goal"] is False
    assert made["lanes"]["theirs"]["rounds"] == [2e6]


def test_lanes_of_the_same_streams_must_agree() -> None:
    lanes = {"ours": lane(2, (2, "a")), "theirs": lane(2, (2, "b"))}
    with pytest.raises(BenchError, match="theirs found"):
        check_same(row(), lanes)
    check_same(row(same_streams=False), lanes)


def test_a_lane_that_reads_too_little_is_refused() -> None:
    with pytest.raises(BenchError, match="ours read 1 of 2 entries"):
        check_same(row(), {"ours": lane(2, (1, "a"))})


def test_lanes_of_different_samples_need_not_agree() -> None:
    check_same(row(), {"ours": lane(2, (2, "a")), "sample": lane(1, (1, "b"))})


def test_the_cpu_time_of_a_family_is_that_of_its_members() -> None:
    """Also what a child spent; and one that is gone at the second reading takes nothing away."""
    assert cpu_s_between({1: 10, 2: 99}, {1: 10 + TICKS_PER_S, 3: TICKS_PER_S}) == 2.0
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert {os.getpid(), child.pid} <= family_cpu_ticks(os.getpid()).keys()
    child.communicate(b"\n")
    assert child.pid not in family_cpu_ticks(os.getpid())
