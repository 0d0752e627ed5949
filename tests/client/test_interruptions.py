"""A signal handler may raise anywhere: the objects are used again after that."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.client.conftest import url_of
from tests.pipeline.installing import ROOT
from tests.support.server import Server

WRITING = {"Plain": 13, "Pipelines": 29, "Append": 17, "Many": 17, "Produce": 13, "Facts": 29}
READING = dict.fromkeys(("Read", "Split", "Gap", "Consume"), 59)


@pytest.mark.parametrize("programs", [WRITING, READING], ids=["writing", "reading"])
def test_an_object_works_after_an_interruption_anywhere(
    server: Server, programs: dict[str, int]
) -> None:
    for name, every in programs.items():
        words = ["-m", "tests.client.interruptions", url_of(server), name, f"--every={every}"]
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        *faults, last = done.stdout.splitlines()
        assert faults == []
        assert int(last.split()[0]) > 10, "too few statements were interrupted"
