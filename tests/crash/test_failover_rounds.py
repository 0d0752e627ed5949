"""Everything that was answered is true on the new primary after kill -9 of the old one under load.

A few rounds; MILLSTREAM_FAILOVER_ROUNDS=50 plays more, and so does `python -m
tests.crash.failover_rounds`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.crash.failover_rounds import MODES, FailoverPair, failover_rounds
from tests.crash.rounds import Rounds
from tests.support.history import BrokenHistory
from tests.support.waiting import wait_until

ROUNDS = int(os.environ.get("MILLSTREAM_FAILOVER_ROUNDS", "2"))
pytestmark = [pytest.mark.timeout(60 + 30 * ROUNDS)]


@pytest.mark.parametrize("mode", MODES)
def test_acknowledged_writes_survive_the_loss_of_the_primary(tmp_path: Path, mode: str) -> None:
    rounds = failover_rounds(tmp_path, mode, seed=1)
    try:
        for _ in range(ROUNDS):
            rounds.play()
        rounds.load.finish()
    finally:
        rounds.pair.stop()


def test_a_round_notices_frames_that_the_replica_never_got(tmp_path: Path) -> None:
    """The test above can fail: nothing waits for this replica, which gets nothing at the end."""
    pair = FailoverPair(tmp_path, replicas_durable=0)

    def lag_and_kill(pair: FailoverPair) -> int:
        pair.replica.kill()
        before = rounds.record.history.answered
        wait_until(lambda: rounds.record.history.answered >= before + 300)
        code = pair.kill()
        pair.replica.start()
        return code

    rounds = Rounds(pair, seed=1, end=lag_and_kill)
    try:
        with pytest.raises(BrokenHistory):
            rounds.play()
    finally:
        pair.stop()
