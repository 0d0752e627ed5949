"""The sessions in README.md are run, line by line, against a live server.

Replies must be the ones printed there, except for IDs: the first time an id appears in a reply it
stands for whatever id the server gave, and from then on for that one, in commands too.
"""

from __future__ import annotations

import contextlib
import doctest
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.server import Server

README = (Path(__file__).parents[2] / "README.md").read_text()
PORT = "6455"
PROMPT = f"127.0.0.1:{PORT}> "
ID = re.compile(r"\b(\d{13})([.-])(\d+)\b")
INCARNATION = re.compile(r"\(integer\) \d{16}\b")


def blocks(language: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert found, f"README.md has no session in {language}"
    return "".join(found)


class Ids:
    """The real ID for each printed ID."""

    def __init__(self) -> None:
        self._real: dict[tuple[str, str], tuple[str, str]] = {}

    def same(self, printed: str, real: str) -> bool:
        """True if the texts are equal except for IDs and incarnations; each printed ID means one
        real ID only."""
        printed, real = (
            INCARNATION.sub("<incarnation>", printed),
            INCARNATION.sub("<incarnation>", real),
        )
        if ID.sub(r"<id\2>", printed) != ID.sub(r"<id\2>", real):
            return False
        pairs = zip(ID.findall(printed), ID.findall(real), strict=True)
        return all(
            self._real.setdefault((ms, seq), (real_ms, real_seq)) == (real_ms, real_seq)
            for (ms, _, seq), (real_ms, _, real_seq) in pairs
        )

    def put_in(self, command: str) -> str:
        def real(match: re.Match[str]) -> str:
            ms, seq = self._real[match[1], match[3]]
            return f"{ms}{match[2]}{seq}"

        return ID.sub(real, command)


def exchanges(session: str) -> Iterator[tuple[str, str]]:
    """(command, reply as printed) of a redis-cli session."""
    before, *rest = session.split(PROMPT)
    assert before == ""
    for exchange in rest:
        command, _, reply = exchange.partition("\n")
        yield command, reply


def ask(server: Server, command: str) -> str:
    """The output of redis-cli for this line on a terminal."""
    words = shlex.split(command)
    done = subprocess.run(
        ["redis-cli", "--no-raw", "-p", str(server.port), *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return done.stdout


def test_the_redis_cli_session(server: Server) -> None:
    ids = Ids()
    for command, printed in exchanges(blocks("redis-cli")):
        reply = ask(server, ids.put_in(command))
        assert ids.same(printed, reply), f"{command}\n{reply}"


class Checker(doctest.OutputChecker):
    def __init__(self) -> None:
        self._ids = Ids()

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return self._ids.same(want, got)


def test_the_python_session(server: Server) -> None:
    session = blocks("python").replace(PORT, str(server.port))
    namespace: dict[str, object] = {}
    test = doctest.DocTestParser().get_doctest(session, namespace, "README.md", None, 0)
    assert test.examples
    printed: list[str] = []
    runner = doctest.DocTestRunner(checker=Checker(), verbose=False)
    with contextlib.closing(_Closing(namespace)):
        failed, _ = runner.run(test, out=printed.append, clear_globs=False)
    assert failed == 0, "".join(printed)


class _Closing:
    """Closes the clients that the session leaves open."""

    def __init__(self, namespace: dict[str, object]) -> None:
        self._namespace = namespace

    def close(self) -> None:
        for name in ("server", "ms"):
            if name in self._namespace:
                self._namespace[name].close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("printed", "real", "same"),
    [
        ('"1795170387725.0"', '"1800000000000.7"', True),
        ('"1795170387725.0"', '"1800000000000-7"', False),
        ("1795170387725.0 1795170387725.0", "1800000000000.1 1800000000000.2", False),
        ("(integer) 1", "(integer) 2", False),
        ("(nil)", "(empty array)", False),
    ],
)
def test_the_comparison_can_fail(printed: str, real: str, same: bool) -> None:
    assert Ids().same(printed, real) is same
