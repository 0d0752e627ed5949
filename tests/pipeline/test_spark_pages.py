"""The session in README.md and the options in docs/spark.md are correct."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.server import Server

from millstream.pipeline.source_options import LIVE, OPTIONS, SCAN, STREAM, STREAM_WRITE, WRITE

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs" / "spark.md").read_text()
# Spark's own, or the argument of load().
SPARKS = {"path", "checkpointLocation", "queryName"}


@pytest.mark.timeout(300)
def test_the_spark_session_of_the_readme(
    spark_environment: dict[str, str], durable_server: Server, tmp_path: Path
) -> None:
    """Spark gets no settings except the virtualenv in PATH, as after its `activate`."""
    (session,) = re.findall(r"^```pycon\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert session.count("6455") == session.count('"data"') == 1
    session = session.replace("6455", str(durable_server.port))
    session = session.replace('"data"', repr(str(durable_server.directory)))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {"PATH": path, "HOME": str(tmp_path)} | spark_environment
    del environment["PYSPARK_PYTHON"]
    (tmp_path / "session.txt").write_text(session)
    done = subprocess.run(
        ["python", "-m", "doctest", "session.txt"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def documented(section: str) -> set[str]:
    """The options in the tables of a section of the guide."""
    text = GUIDE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    tables = re.findall(r"^\| option \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    cells = [row.split("|")[1] for table in tables for row in table.splitlines()]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize(
    ("section", "purposes"),
    [
        ("Snapshots", {SCAN}),
        ("Reading a server", {LIVE, STREAM}),
        ("Writing", {WRITE, STREAM_WRITE}),
    ],
)
def test_the_guide_has_every_option_and_no_other(section: str, purposes: set[str]) -> None:
    there = {name for name, of in OPTIONS.items() if purposes & set(of)}
    assert documented(section) == there - SPARKS
