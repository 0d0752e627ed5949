"""Runs a fuzz target for some time:

    python -m tests.fuzz rdb --seconds 60 [--seed N]

A finding ends the run: the file is kept, and the seed shows it again.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import traceback
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.changes import changed

TARGETS = ("rdb", "aof", "link")


def run_seed(target: Any, files: list[bytes], seed: int) -> bytes | None:
    """Check one changed file; the file if that fails."""
    random = Random(seed)
    data = target.completed(changed(random.choice(files), files, random), random)
    try:
        target.check(data, random)
    except Exception:
        traceback.print_exc()
        return data  # type: ignore[no-any-return]
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, help="only this one")
    given = parser.parse_args()
    target = importlib.import_module(f"tests.fuzz.{given.target}")
    files = target.seeds()
    seed = time.time_ns() if given.seed is None else given.seed
    end_s = time.monotonic() + given.seconds
    count = 0
    while True:
        count += 1
        failing = run_seed(target, files, seed)
        if failing is not None:
            path = Path(f"fuzz-{given.target}-{seed}.bin")
            path.write_bytes(failing)
            print(f"seed {seed} fails: {path}", file=sys.stderr)
            return 1
        if given.seed is not None or time.monotonic() >= end_s:
            print(f"{given.target}: {count} files")
            return 0
        seed += 1


if __name__ == "__main__":
    sys.exit(main())
