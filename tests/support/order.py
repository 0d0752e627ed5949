"""The order of the tests when several workers run them: what takes longest begins first.

A worker gets a run of neighbouring tests, and one that has nothing left takes tests from the end of
another worker's run (`--dist worksteal`). So the long tests are dealt out to the beginnings of the
runs, and the many short ones even out the ends. Tests that share a Spark session stay together:
to start one takes as long as a hundred ordinary tests.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

# How long these take, in seconds of a machine with nothing else to do. Everything else is short.
LONG_S = {
    "the shared Spark session": 240,
    "tests/pipeline/test_killed_driver.py": 100,
    "tests/pipeline/test_installations.py::test_installed_from_a_wheel_with_what_it_requires": 100,
    "tests/pipeline/test_installations.py::test_through_spark_connect": 90,
    "tests/pipeline/test_installations.py::test_with_the_oldest_pyspark": 70,
    "tests/pipeline/test_spark_pages.py::test_the_spark_session_of_the_readme": 60,
    "tests/sim/test_simulation.py": 80,
    "tests/unit/test_check.py": 40,
    "tests/unit/test_block.py": 30,
    "tests/unit/test_damaged_files.py": 20,
    "tests/unit/test_tidy.py": 20,
    "tests/unit/test_held.py": 20,
    "tests/unit/test_stream.py": 15,
}


def long_unit(item: pytest.Item) -> str | None:
    """Which of LONG_S a test belongs to."""
    if "_spark" in getattr(item, "fixturenames", ()):
        return "the shared Spark session"
    return next((name for name in LONG_S if item.nodeid.startswith(name)), None)


def longest_first(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """The same tests, in runs of equal length, one for each worker."""
    units: dict[str, list[pytest.Item]] = {}
    short = []
    for item in items:
        name = long_unit(item)
        if name is None:
            short.append(item)
        else:
            units.setdefault(name, []).append(item)
    runs: list[list[pytest.Item]] = [[] for _ in range(workers)]
    taken_s = [0] * workers
    for name in sorted(units, key=lambda name: LONG_S[name], reverse=True):
        least = taken_s.index(min(taken_s))
        runs[least] += units[name]
        taken_s[least] += LONG_S[name]
    return _of_equal_length(runs, short, len(items))


def _of_equal_length(
    runs: list[list[pytest.Item]], short: list[pytest.Item], left: int
) -> list[pytest.Item]:
    """The runs, filled up as the scheduler divides the tests: the last ones may have one more."""
    ordered: list[pytest.Item] = []
    for place, run in enumerate(runs):
        size = left // (len(runs) - place)
        wanted = max(size - len(run), 0)
        ordered += run + short[:wanted]
        short = short[wanted:]
        left -= size
    return ordered + short
