"""The types that users see: `typing_cases.py` states them, and mypy and pyright agree.

pyright is run as basedpyright, which comes from PyPI as a whole.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import millstream.client

CASES = Path(__file__).with_name("typing_cases.py")
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "client"


def mypy(folder: Path) -> str:
    """What mypy says about the programs of a user in a folder."""
    programs = [str(path) for path in sorted(folder.glob("*.py"))]
    return run(folder, "mypy", "--strict", "--config-file=", *programs)


def pyright(folder: Path) -> str:
    """The same for pyright in its strict mode."""
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    return run(folder, "basedpyright", "--pythonpath", sys.executable, str(folder))


def run(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True
    )
    return done.stdout + done.stderr


CHECKERS = {"mypy": (mypy, "Success"), "pyright": (pyright, "0 errors, 0 warnings")}


@pytest.mark.parametrize("checker", CHECKERS)
def test_the_types_are_those_of_the_documentation_and_the_examples_have_no_errors(
    tmp_path: Path, checker: str
) -> None:
    for path in (CASES, *EXAMPLES.glob("*.py")):
        (tmp_path / path.name).write_text(path.read_text())
    check, good = CHECKERS[checker]
    said = check(tmp_path)
    assert said.startswith(good), said


WRONG = [
    ('text.treserve("s", "w", 2), list[ID])', 'text.treserve("s", "w", 2), ID)'),
    ('text.stream(["s", "t"], "latest")', "text.stream(5)"),
    ('Shard("s", raw)', 'Shard("s", "redis://localhost")'),
    ('text.tpolicy("s", maxlen=1), bool)', 'text.tpolicy("s", maxlen=1), None)'),
]


@pytest.mark.parametrize("checker", CHECKERS)
def test_wrong_types_are_found(tmp_path: Path, checker: str) -> None:
    text = CASES.read_text()
    lines = []
    for right, wrong in WRONG:
        assert text.count(right) == 1
        lines.append(text[: text.index(right)].count("\n") + 1)
        text = text.replace(right, wrong)
    (tmp_path / "program.py").write_text(text)
    check, _ = CHECKERS[checker]
    said = check(tmp_path)
    assert all(f"program.py:{line}:" in said for line in lines), said


def test_the_package_says_that_it_has_types() -> None:
    assert millstream.client.__file__ is not None
    package = Path(millstream.client.__file__).parents[1]
    assert (package / "py.typed").exists()
