"""Calls redis-benchmark and parses its output.

Redis' users know this tool, it is fast enough to keep a server busy from one core, and it treats
both servers equally because the command is given as words. `--csv` is its only output with fixed
columns.
"""

from __future__ import annotations

import csv
import subprocess
from dataclasses import dataclass

from bench.figures import BenchError

CONNECTIONS = 50
RUN_TIMEOUT_S = 600.0
RATE_COLUMN = "rps"


@dataclass(frozen=True)
class Load:
    """A load for redis-benchmark: `requests` commands, `pipeline` at a time on each connection.

    With `random_below`, every `__rand_int__` in the words becomes a number below it with twelve
    digits.
    """

    requests: int
    pipeline: int = 1
    random_below: int | None = None
    connections: int = CONNECTIONS
    authority: str = ""  # the file of certificates to trust; empty: without TLS

    def __post_init__(self) -> None:
        # Otherwise redis-benchmark sends some more requests, and the cost per request is wrong.
        if self.requests % self.pipeline:
            raise ValueError(f"{self.requests} requests do not fill pipelines of {self.pipeline}")


def command_line(port: int, load: Load, words: tuple[str, ...]) -> list[str]:
    """The arguments of redis-benchmark for this load."""
    line = [
        "redis-benchmark",
        "-p",
        str(port),
        "-c",
        str(load.connections),
        "-P",
        str(load.pipeline),
    ]
    line += ["-n", str(load.requests), "--csv"]
    if load.authority:
        line += ["--tls", "--cacert", load.authority]
    if load.random_below is not None:
        line += ["-r", str(load.random_below)]
    return [*line, *words]


def parse_rate(output: str) -> float:
    """Operations per second from redis-benchmark's CSV output; BenchError if there are none."""
    lines = [line for line in output.splitlines() if line.startswith('"')]
    table = list(csv.reader(lines))
    if len(table) < 2 or RATE_COLUMN not in table[0]:
        raise BenchError(f"redis-benchmark gave no result: {output.strip()[-300:]!r}")
    from_end = table[0].index(RATE_COLUMN) - len(table[0])
    try:
        # Indexed from the end: a quote in a command word may split the first column.
        return float(table[-1][from_end])
    except (IndexError, ValueError) as error:
        raise BenchError(f"redis-benchmark's result is not readable: {lines[-1]!r}") from error


def run(port: int, load: Load, words: tuple[str, ...]) -> float:
    """Run one load and return operations per second."""
    line = command_line(port, load, words)
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=RUN_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"redis-benchmark took longer than {RUN_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise BenchError(f"redis-benchmark failed: {said[-300:]}")
    return parse_rate(done.stdout)
