"""The command line that plays seeds of a simulation, and shows those that fail."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from typing import NamedTuple


class Play(NamedTuple):
    """A seed that was played without a failure: how often each kind of event happened, and what
    identifies the run, where a simulation has one."""

    counts: dict[str, int]
    trace: str = ""


def play_seeds(module: str, play: Callable[[int, int], Play], default_steps: int) -> int:
    """Play the seeds of the command line; the exit code. `play(seed, steps)` raises AssertionError
    when a promise is broken."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description="Play one seed, or many, and show those that fail."
    )
    parser.add_argument("seed", type=int, nargs="?", help="play this one seed")
    parser.add_argument("--seeds", type=int, default=1000, help="play this many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--steps", type=int, default=default_steps, help="events in each seed")
    parser.add_argument("--stop-after", type=int, default=5, help="failing seeds to show")
    options = parser.parse_args()
    if options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    else:
        seeds = range(options.first, options.first + options.seeds)
    logging.getLogger("millstream").setLevel(logging.CRITICAL)
    played, failures = 0, 0
    totals: dict[str, int] = {}
    for seed in seeds:
        played += 1
        try:
            counts, trace = play(seed, options.steps)
        except AssertionError as failure:
            failures += 1
            print(f"seed {seed}: {failure}\n", flush=True)
            if failures >= options.stop_after:
                break
        else:
            if len(seeds) == 1 and trace:
                print(f"seed {seed}: {trace}")
            for kind, count in counts.items():
                totals[kind] = totals.get(kind, 0) + count
    print(f"{failures} of {played} seeds failed; events: {totals}")
    return 1 if failures else 0
