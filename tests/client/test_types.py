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
    """The output of mypy for the programs of a user in a folder."""
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


CHECKERS = {"mypy": mypy, "pyright": pyright}

WRONG = [
    ('text.treserve("s", "w", 2), list[ID])', 'text.treserve("s", "w", 2), ID)'),
    ('text.stream(["s", "t"], "latest")', "text.stream(5)"),
    ('Shard("s", raw)', 'Shard("s", "redis://localhost")'),
    ('text.tpolicy("s", maxlen=1), bool)', 'text.tpolicy("s", maxlen=1), None)'),
    ('assert_type(text.tappend("s", {"n": 1}), ID)', 'text.tappend("s", {"n": None})'),
    ('order_writer.append(Order("tea")), ID)', 'order_writer.append({"item": "tea"}), ID)'),
    ('order_producer.append(Order("salt")), Receipt)', 'order_producer.append("x"), Receipt)'),
    ("assert_type(job.value, Order)", "assert_type(job.value, str)"),
    ('text.producer("s").of(Raw()).append(b"data")', 'text.producer("s").of(5)'),
    ("assert_type(writer.facts(2), list[Fact[str]])", 'fact["n"] = datetime.now()'),
]


def wrong_program() -> tuple[str, list[int]]:
    """The cases with some mistakes, and their lines."""
    text, lines = CASES.read_text(), []
    for right, wrong in WRONG:
        assert text.count(right) == 1
        lines.append(text[: text.index(right)].count("\n") + 1)
        text = text.replace(right, wrong)
    return text, lines


@pytest.fixture(scope="module", params=CHECKERS)
def output(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A checker's output lines about the cases, the examples and a wrong program. It runs
    once, because it spends nearly all of its time on the libraries."""
    folder = tmp_path_factory.mktemp(request.param)
    for path in (CASES, *EXAMPLES.glob("*.py")):
        (folder / path.name).write_text(path.read_text())
    (folder / "wrong.py").write_text(wrong_program()[0])
    return CHECKERS[request.param](folder).splitlines()


def test_the_types_match_the_documentation_and_its_examples(
    output: list[str],
) -> None:
    errors = [line for line in output if " error: " in line or " - warning: " in line]
    assert errors, output
    assert [line for line in errors if "wrong.py:" not in line] == []


def test_wrong_types_are_found(output: list[str]) -> None:
    _, lines = wrong_program()
    for line in lines:
        assert any(f"wrong.py:{line}:" in one for one in output), output


def test_the_package_declares_its_types() -> None:
    assert millstream.client.__file__ is not None
    package = Path(millstream.client.__file__).parents[1]
    assert (package / "py.typed").exists()
