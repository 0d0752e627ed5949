"""`python -m tests.sim SEED` or `python -m tests.sim --seeds N [--first SEED]`."""

from __future__ import annotations

import sys

from tests.sim.seeds import Play, play_seeds
from tests.sim.simulation import STEPS, Simulation


def play(seed: int, steps: int) -> Play:
    simulation = Simulation(seed, steps)
    trace = simulation.run()
    return Play(simulation.counts, trace)


if __name__ == "__main__":
    sys.exit(play_seeds("tests.sim", play, STEPS))
