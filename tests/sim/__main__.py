"""`python -m tests.sim SEED` or `python -m tests.sim --seeds N [--first SEED]`."""

from __future__ import annotations

import argparse
import sys

from tests.sim.simulation import STEPS, Simulation, SimulationFailure


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="play this one seed")
    parser.add_argument("--seeds", type=int, default=1000, help="play this many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--steps", type=int, default=STEPS, help="events in each seed's play")
    parser.add_argument("--stop-after", type=int, default=5, help="failing seeds to show")
    options = parser.parse_args()
    if options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    else:
        seeds = range(options.first, options.first + options.seeds)
    failures = 0
    totals: dict[str, int] = {}
    for seed in seeds:
        simulation = Simulation(seed, options.steps)
        try:
            trace_hash = simulation.run()
        except SimulationFailure as failure:
            failures += 1
            print(f"seed {seed}: {failure}\n", flush=True)
            if failures >= options.stop_after:
                break
        else:
            if len(seeds) == 1:
                print(f"seed {seed}: {trace_hash}")
        for kind, count in simulation.counts.items():
            totals[kind] = totals.get(kind, 0) + count
    print(f"{failures} of {len(seeds)} seeds failed; events: {totals}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
