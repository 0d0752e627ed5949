"""The order of the tests when several workers run them: the longest tests begin first.

A worker gets a run of neighbouring tests, and an idle worker takes tests from the end of another
worker's run (`--dist worksteal`). Therefore the long tests are distributed to the beginnings of the
runs, and the many short tests balance the ends. Tests that share a Spark session, a browser or
PostgreSQL clusters stay together, because each worker that runs one of them starts its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

# Durations in seconds on an idle machine. All other tests are short.
LONG_S = {
    "the dashboard": 105,
    "the first PostgreSQL clusters": 100,
    "the second PostgreSQL clusters": 90,
    "the shared Spark session": 80,
    "tests/sim/test_simulation.py": 45,
    "tests/compat/test_sentinel.py": 35,
    "tests/pipeline/test_killed_driver.py": 35,
    "tests/client/test_real_servers.py": 30,
    "tests/pipeline/test_installations.py::test_a_wheel_installs_with_its_requirements": 25,
    "tests/pipeline/test_installations.py::test_with_the_oldest_pyspark": 22,
    "tests/client/test_installations.py": 23,
    "tests/pipeline/test_installations.py::test_through_spark_connect": 15,
    "tests/client/test_types.py": 12,
    "tests/unit/test_package.py": 12,
    "tests/pipeline/test_spark_pages.py::test_the_spark_session_of_the_readme": 10,
    "tests/unit/test_check.py": 9,
}
# What tests share that use one of these fixtures.
SHARED = {
    "_spark": "the shared Spark session",
    "board": "the dashboard",
    "chromium": "the dashboard",
    "new_board": "the dashboard",
    "source_cluster": "the second PostgreSQL clusters",
    "destination_cluster": "the second PostgreSQL clusters",
}
# A worker with all tests of PostgreSQL would be the last one to end.
IN_FIRST_CLUSTERS = (
    "tests/cdc/test_commands.py", "tests/cdc/test_soak.py", "tests/cdc/test_source_process.py",
)  # fmt: skip


def long_unit(item: pytest.Item) -> str | None:
    """The key of LONG_S to which a test belongs, if any."""
    if item.nodeid.startswith(IN_FIRST_CLUSTERS):
        return "the first PostgreSQL clusters"
    for name in getattr(item, "fixturenames", ()):
        if name in SHARED:
            return SHARED[name]
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
