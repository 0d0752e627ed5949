"""redis-cli and redis-benchmark, unchanged, against our server."""

from __future__ import annotations

import fcntl
import os
import re
import select
import shutil
import struct
import subprocess
import termios
from collections.abc import Sequence

import pytest
from tests.support.server import Server
from tests.support.terminal import open_terminal
from tests.support.waiting import wait_until

DEADLINE_S = 60


def tool(name: str) -> str:
    path = shutil.which(name)
    assert path, f"{name} is missing: apt-get install redis-tools"
    return path


def run(name: str, server: Server, *arguments: str, stdin: str = "") -> tuple[str, str]:
    """stdout and stderr; the exit code must be 0."""
    done = subprocess.run(
        [tool(name), "-p", str(server.port), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout, done.stderr


CLI_SCRIPT = """\
PING
XADD s 1-1 f "a\\x00\\"b" g w
XADD s 2-1 f v
XADD s 2-1 f v
XLEN s
XRANGE s - +
XGROUP CREATE s g 0
XREADGROUP GROUP g alice COUNT 1 STREAMS s >
XPENDING s g
XACK s g 1-1
XREADGROUP GROUP g alice BLOCK 10 STREAMS s >
XREAD BLOCK 10 STREAMS s $
XADD s *
GET nokey
ECHO bye
"""


@pytest.mark.parametrize("options", [(), ("-3",), ("--no-raw",), ("--csv",), ("--json",)])
def test_redis_cli_prints_the_same_as_with_redis(
    server: Server, redis_server: Server, options: Sequence[str]
) -> None:
    ours = run("redis-cli", server, *options, stdin=CLI_SCRIPT)
    theirs = run("redis-cli", redis_server, *options, stdin=CLI_SCRIPT)
    assert ours == theirs


def test_cli_speaks_the_drafts_commands(server: Server) -> None:
    printed, errors = run("redis-cli", server, "TAPPEND", "s", "sensor", "01")
    entry_id = printed.strip()
    assert re.fullmatch(r"\d+\.\d+", entry_id)
    assert errors == ""
    printed, _ = run("redis-cli", server, "--no-raw", "TREAD", "s", "0", "10", "WITHINFO")
    assert printed.splitlines() == [
        f'1) 1) "{entry_id}"',
        f'   2) "{entry_id}"',
        f'2) 1) "{entry_id}"',
        '   2) "sensor"',
        '   3) "01"',
    ]


def test_cli_speaks_to_a_person(server: Server) -> None:
    """On a terminal redis-cli asks for COMMAND DOCS and HELLO first, and helps while one types."""
    master, slave = open_terminal()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [tool("redis-cli"), "-p", str(server.port)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm", "HOME": str(server.directory.parent)},
    )
    os.close(slave)
    seen = bytearray()

    def see(words: bytes) -> None:
        def look() -> bytes:
            while select.select([master], [], [], 0)[0]:
                seen.extend(os.read(master, 65536))
            return bytes(seen)

        wait_until(look, lambda text: words in text, repr(words))

    try:
        see(b"> ")
        os.write(master, b"XADD s 7-1 f v\r")
        see(b'"7-1"')
        os.write(master, b"TRANGE s - +\r")
        see(b'"7.1"')
        os.write(master, b"HELP TAPPEND\r")
        see(b"group:\x1b[0m stream")  # the label is coloured
        os.write(master, b"QUIT\r")
        process.wait(10)
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_cli_pipe_mode_loads_in_bulk(server: Server) -> None:
    protocol = "".join(
        f"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n${len(f'{n}-1')}\r\n{n}-1\r\n$1\r\nf\r\n$1\r\nv\r\n"
        for n in range(1, 2001)
    )
    printed, _ = run("redis-cli", server, "--pipe", stdin=protocol)
    assert "errors: 0, replies: 2000" in printed


BENCHMARKS: dict[str, list[str]] = {
    "the built-in tests": ["-t", "ping_inline,ping_mbulk,set,get"],
    "TAPPEND": ["TAPPEND", "s", "sensor", "01", "temperature", "35.6"],
    "TAPPEND to many keys": ["-r", "1000", "TAPPEND", "s:__rand_int__", "sensor", "01"],
    "XADD": ["XADD", "s", "*", "sensor", "01", "temperature", "35.6"],
    "TREAD": ["TREAD", "s", "0", "10"],
}


@pytest.mark.parametrize("pipeline", ["1", "16"])
@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmark_runs_without_a_warning(server: Server, name: str, pipeline: str) -> None:
    check_benchmark(server, pipeline, BENCHMARKS[name])


@pytest.mark.parametrize("pipeline", ["1", "16"])
def test_benchmark_of_counters_runs_without_a_warning(server: Server, pipeline: str) -> None:
    check_benchmark(server, pipeline, ["-t", "incr,mset"])


def check_benchmark(server: Server, pipeline: str, words: Sequence[str]) -> None:
    # An error reply ends the tool at once with exit code 1.
    printed, errors = run(
        "redis-benchmark", server, "-q", "-n", "2000", "-c", "20", "-P", pipeline, *words
    )
    assert "requests per second" in printed
    assert "rror" not in printed
    assert errors == ""
