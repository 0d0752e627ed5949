"""The types that users see: `typing_cases.py` states them, and mypy agrees."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import millstream.client

CASES = Path(__file__).with_name("typing_cases.py")


def mypy(folder: Path, text: str) -> str:
    """What mypy says about a program of a user. It is installed with the `lint` extra."""
    program = folder / "program.py"
    program.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", program],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def test_the_types_are_those_of_the_documentation(tmp_path: Path) -> None:
    said = mypy(tmp_path, CASES.read_text())
    assert said.startswith("Success"), said


def test_a_wrong_type_is_found(tmp_path: Path) -> None:
    said = mypy(tmp_path, CASES.read_text().replace('"w", 2), list[ID])', '"w", 2), ID)'))
    assert "[assert-type]" in said


def test_the_package_says_that_it_has_types() -> None:
    assert millstream.client.__file__ is not None
    package = Path(millstream.client.__file__).parents[1]
    assert (package / "py.typed").exists()
