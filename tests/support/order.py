"""The order of the tests when several workers run them: the longest tests begin first.

A worker gets a run of neighbouring tests, and an idle worker takes tests from the end of another
worker's run (`--dist worksteal`). Therefore the long tests are distributed to the beginnings of the
runs, and the many short tests balance the ends. Tests that share a Spark session stay together,
because starting a session takes as long as a hundred ordinary tests.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

# Durations in seconds on an idle machine. All other tests are short.
LONG_S = {
    "the shared Spark session": 80,
    "tests/dashboard/test_pages.py": 100,
    "tests/pipeline/test_killed_driver.py": 50,
    "tests/sim/test_simulation.py": 45,
    "tests/cdc/test_source_process.py": 45,
    "tests/compat/test_sentinel.py": 35,
    "tests/client/test_real_servers.py": 30,
    "tests/cdc/test_apply_program.py": 30,
    "tests/pipeline/test_installations.py::test_a_wheel_installs_with_its_requirements": 28,
    "tests/cdc/test_commands.py": 25,
    "tests/pipeline/test_installations.py::test_through_spark_connect": 18,
    "tests/pipeline/test_installations.py::test_with_the_oldest_pyspark": 25,
    "tests/cdc/test_reader_kills.py": 25,
    "tests/client/test_installations.py": 23,
    "tests/cdc/test_soak.py": 15,
    "tests/client/test_types.py": 12,
    "tests/unit/test_package.py": 12,
    "tests/pipeline/test_spark_pages.py::test_the_spark_session_of_the_readme": 10,
    "tests/unit/test_check.py": 9,
}


def long_unit(item: pytest.Item) -> str | None:
    """The key of LONG_S to which a test belongs, if any."""
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
    """The runs, filled as the scheduler divides the tests: the last ones may have one more."""
    ordered: list[pytest.Item] = []
    for place, run in enumerate(runs):
        size = left // (len(runs) - place)
        wanted = max(size - len(run), 0)
        ordered += run + short[:wanted]
        short = short[wanted:]
        left -= size
    return ordered + short
