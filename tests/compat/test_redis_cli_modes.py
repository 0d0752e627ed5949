"""The modes of redis-cli that look at a server: they read INFO, SCAN, TYPE, MEMORY and LATENCY."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from tests.support.server import Server

DEADLINE_S = 60


def cli() -> str:
    path = shutil.which("redis-cli")
    assert path, "redis-cli is missing: apt-get install redis-tools"
    return path


@pytest.fixture
def filled(server: Server) -> Server:
    with server.client() as client:
        client.call("SET", "small", "v")
        client.call("SET", "big", "v" * 5000)
        for number in range(200):
            client.call("XADD", "stream", f"{number + 1}-1", "f", "v" * 100)
        client.call("XADD", "short", "1-1", "f", "v")
    return server


def printed(server: Server, *arguments: str) -> str:
    done = subprocess.run(
        [cli(), "-p", str(server.port), *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert done.stderr == ""
    return done.stdout


def unquoted(text: str) -> str:
    return text.replace("'", "").replace('"', "")


def test_bigkeys_finds_the_biggest(filled: Server) -> None:
    text = unquoted(printed(filled, "--bigkeys"))
    assert "Biggest string found big has 5000 bytes" in text
    assert "Biggest stream found stream has 200 entries" in text


def test_memkeys_finds_the_heaviest(filled: Server) -> None:
    text = unquoted(printed(filled, "--memkeys"))
    assert re.search(r"Biggest string found big has [5-9]\d\d\d bytes", text)
    assert re.search(r"Biggest stream found stream has \d+ bytes", text)


def test_latency_measures(filled: Server) -> None:
    lowest, highest, average, samples = printed(filled, "--latency", "--raw").split()
    assert float(lowest) <= float(average) <= float(highest)
    assert int(samples) > 1


def test_stat_prints_a_line_again_and_again(filled: Server) -> None:
    with subprocess.Popen(
        [cli(), "-p", str(filled.port), "--stat", "-i", "0.05"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = [next(process.stdout) for _ in range(5)]
        process.terminate()
    assert "keys" in lines[1]
    for line in lines[2:]:
        keys, memory, clients, blocked, requests = line.split()[:5]
        assert (keys, blocked) == ("4", "0")
        assert re.fullmatch(r"[\d.]+[KMG]", memory)
        assert int(clients) >= 1
        assert int(requests) > 0


@pytest.mark.parametrize(
    "words",
    [("INFO", "everything"), ("SLOWLOG", "GET"), ("LATENCY", "DOCTOR"), ("MEMORY", "STATS"),
     ("LOLWUT",), ("DEBUG", "HELP"), ("CONFIG", "GET", "*"), ("COMMAND", "DOCS")],
)  # fmt: skip
def test_redis_cli_prints_its_reports(filled: Server, words: tuple[str, ...]) -> None:
    assert not printed(filled, *words).startswith(("ERR", "(error)"))
