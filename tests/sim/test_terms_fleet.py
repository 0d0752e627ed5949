"""Seeds of a shard: elections, promises, old primaries, on a network and machines that fail."""

from __future__ import annotations

import pytest
from tests.sim.terms_fleet import play
from tests.support.effort import examples

BATCHES = examples(4)
BATCH_SEEDS = 6


@pytest.mark.parametrize("batch", range(BATCHES))
def test_what_a_shard_confirms_is_kept_and_one_primary_confirms(batch: int) -> None:
    for seed in range(batch * BATCH_SEEDS, (batch + 1) * BATCH_SEEDS):
        play(seed)
