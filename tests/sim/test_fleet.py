"""Seeds of the fleet: servers that follow each other, on a network and machines that fail."""

from __future__ import annotations

import pytest
from tests.sim.durable_fleet import play as play_durable
from tests.sim.fleet import play
from tests.sim.planned_fleet import play as play_planned
from tests.support.effort import examples

BATCHES = examples(6)
BATCH_SEEDS = 6


@pytest.mark.parametrize("batch", range(BATCHES))
def test_servers_that_follow_each_other_become_equal(batch: int) -> None:
    for seed in range(batch * BATCH_SEEDS, (batch + 1) * BATCH_SEEDS):
        play(seed)


def test_a_seed_of_a_fleet_always_plays_the_same() -> None:
    assert play(3) == play(3)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_writes_confirmed_by_a_replica_survive_a_lost_primary(batch: int) -> None:
    for seed in range(batch * BATCH_SEEDS, (batch + 1) * BATCH_SEEDS):
        play_durable(seed)


@pytest.mark.parametrize("batch", range(2))
def test_a_planned_move_of_the_primary_loses_nothing(batch: int) -> None:
    for seed in range(50 + batch * BATCH_SEEDS, 50 + (batch + 1) * BATCH_SEEDS):
        play_planned(seed)
