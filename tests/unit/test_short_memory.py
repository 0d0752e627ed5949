"""A delivery whose reply does not fit into memory has not happened."""

from __future__ import annotations

import subprocess
import sys

import pytest


def play(kind: str, line: str) -> None:
    command = [sys.executable, "-m", "tests.support.short_memory", kind, line]
    subprocess.run(command, check=True, timeout=60)


@pytest.mark.parametrize(
    "line",
    [
        "XREADGROUP GROUP g a STREAMS s >",
        "XREADGROUP GROUP g a NOACK STREAMS s >",
        "TREAD s 0 1000 GROUP g 0 RETRY 0 0",
    ],
)
def test_a_read_without_memory_delivers_nothing(line: str) -> None:
    play("first", line)


def test_a_redelivery_without_memory_counts_nothing() -> None:
    play("again", "TREAD s 0 1000 GROUP g 0 RETRY 0 0")
