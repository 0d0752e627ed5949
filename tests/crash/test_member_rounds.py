"""Some rounds of partitions and kills of a shard, and the check of its history."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.crash.machine_rounds import Append, Read, check

ROUNDS = 3
DEADLINE_S = 120


def test_a_shard_keeps_its_history_in_some_rounds() -> None:
    words = [sys.executable, "-m", "tests.crash.member_rounds", "--rounds", str(ROUNDS)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"round {ROUNDS - 1}:" in done.stdout


ONE = Append(b"a", (5, 0), 1.0, 2.0)
TWO = Append(b"b", (6, 0), 3.0, 4.0)
FOUND = {ONE.id: b"a", TWO.id: b"b"}


@pytest.mark.parametrize(
    ("appends", "reads", "found", "problem"),
    [
        ([ONE, TWO], [], {ONE.id: b"a"}, "is lost"),
        ([ONE, TWO], [], {**FOUND, TWO.id: b"c"}, "is lost"),
        ([ONE], [Read(frozenset([(7, 0)]), False, 1.0)], FOUND, "are lost"),
        ([ONE, TWO._replace(id=(4, 0))], [], {ONE.id: b"a", (4, 0): b"b"}, "after the reply"),
        ([ONE, TWO], [Read(frozenset([ONE.id]), True, 20.0)], FOUND, "a read of a primary"),
    ],
)
def test_a_wrong_history_is_found(
    appends: list[Append], reads: list[Read], found: dict[tuple[int, int], bytes], problem: str
) -> None:
    with pytest.raises(AssertionError, match=problem):
        check(appends, reads, found)


def test_a_right_history_passes() -> None:
    late = Read(frozenset([ONE.id, TWO.id]), True, 20.0)
    old = Read(frozenset([ONE.id]), False, 20.0)
    check([ONE, TWO], [late, old], FOUND)
