"""The distribution of the tests to the workers of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.order import LONG_S, SHARED, longest_first


def item(nodeid: str, *fixtures: str) -> Any:
    return SimpleNamespace(nodeid=nodeid, fixturenames=fixtures)


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("short", [0, 5, 100])
def test_every_test_is_dealt_out_once(workers: int, short: int) -> None:
    items = [item(f"tests/unit/test_x.py::test_{number}") for number in range(short)]
    items += [item(f"{name}::test") for name in LONG_S]
    ordered = longest_first(items, workers)
    assert sorted(one.nodeid for one in ordered) == sorted(one.nodeid for one in items)


def test_each_worker_begins_with_the_longest_work() -> None:
    files = [name for name in LONG_S if name.endswith(".py")]
    items = [item(f"tests/unit/test_x.py::test_{number}") for number in range(1000)]
    items += [item(f"{name}::test") for name in files]
    ordered = longest_first(items, 2)
    longest = sorted(files, key=lambda name: LONG_S[name], reverse=True)[:2]
    assert [ordered[0].nodeid, ordered[len(items) // 2].nodeid] == [f"{n}::test" for n in longest]


@pytest.mark.parametrize("fixture", SHARED)
def test_tests_that_share_something_follow_one_another(fixture: str) -> None:
    items = [item(f"tests/unit/test_x.py::test_{n}", *[fixture] * (n % 3 == 0)) for n in range(90)]
    shares = [fixture in one.fixturenames for one in longest_first(items, 3)]
    first = shares.index(True)
    assert all(shares[first : first + 30])
    assert not any(shares[first + 30 :])


def test_every_shared_thing_has_its_duration() -> None:
    assert set(SHARED.values()) <= set(LONG_S)
