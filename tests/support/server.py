"""A real server process with a free port and its own data directory.

The process is the installed `millstream-server` of the running Python. Most servers are forked from
a process that has already imported it (`fork_server.py`); a server with a program or a wrapper of
its own is started as by a user. `MILLSTREAM_TEST_SERVER` names another program (a wheel installed
elsewhere, or redis-server, which tests the tools themselves).
"""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from millstream.server.monitor import huge_pages

from . import forking
from .client import ConnectionClosed, RawClient
from .resp import Error, Simple
from .waiting import wait_until

START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 30.0
JOURNAL_KEPT_BYTES = 500_000
PORT_ATTEMPTS = 5
FIRST_PORT, PORTS_EACH, PORT_RANGES = 10_000, 1000, 10
_PR_SET_PDEATHSIG = 1
ENVIRONMENT = dict(os.environ)  # of the test run, before any test changes it

# Tests use DEBUG, which is forbidden by default.
DIRECTIVES = {"appendfsync": "always", "enable-debug-command": "local"}

RESTART_WAYS = ("SIGTERM", "SIGKILL", "SAVE and SIGKILL", "BGREWRITEAOF and SIGKILL")


def _own_ports() -> Iterator[int]:
    """Ports that no other worker of the tests uses, that the system does not give to clients, and
    that are not those of `shards`. In turn: none is used again soon."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = FIRST_PORT + worker % PORT_RANGES * PORTS_EACH
    start = random.randrange(PORTS_EACH)
    return (first + (start + number) % PORTS_EACH for number in itertools.count())


_PORTS = _own_ports()


def free_port() -> int:
    """A port that is free at this moment, and that no other test takes before it is used."""
    for port in itertools.islice(_PORTS, PORTS_EACH):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError(f"none of {PORTS_EACH} ports is free")


# sys.prefix, not the executable's real path: a virtualenv's python is a link to the outside.
_PROGRAMS = Path(sys.prefix) / "bin"
# The program `millstream` of the environment in which the tests run.
PROGRAM = str(_PROGRAMS / "millstream")


def server_program() -> list[str]:
    """The command that starts the server under test."""
    named = os.environ.get("MILLSTREAM_TEST_SERVER")
    if named:
        return named.split()
    return [str(_PROGRAMS / "millstream-server")]


def redis_program() -> list[str]:
    """The real redis-server. Its absence is a failure, not a skip."""
    program = shutil.which("redis-server")
    assert program, "redis-server is missing: apt-get install redis-server redis-tools"
    return [program]


class Server:
    """A server process with `start`, `stop`, `kill`, `restart` and its log."""

    def __init__(
        self,
        directory: Path,
        directives: Mapping[str, str] | None = None,
        program: Sequence[str] | None = None,
        wrapper: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self.program = list(program or server_program())
        self.wrapper = list(wrapper)
        is_named = "MILLSTREAM_TEST_SERVER" in os.environ
        self._may_fork = not (program or wrapper or is_named)
        self.directives = {**DIRECTIVES, **_needs(self.program), **(directives or {})}
        self.port = 0
        self.host = "127.0.0.1"
        self.log_path = directory.with_name(directory.name + ".log")
        self._process: forking.Process | None = None

    @property
    def log(self) -> str:
        """The output of the process, both streams."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process; None while it runs."""
        return self._process.poll() if self._process else None

    def command(self, port: int) -> list[str]:
        """The command line, with redis.conf-style directives."""
        settings = {"port": str(port), "dir": str(self.directory), **self.directives}
        words = [word for name, value in settings.items() for word in ("--" + name, value)]
        return [*self.wrapper, *self.program, *words]

    def start(self) -> Server:
        """Start and wait until PING answers. AssertionError with the log when it dies instead."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for attempt in range(PORT_ATTEMPTS):
            # A restart keeps its port. A first start is retried, because another program may take
            # the port between the check and the server's bind.
            port = self.port or free_port()
            self._launch(port)
            if self._becomes_ready(port):
                self.port = port
                return self
            if self.port or "in use" not in self.log or attempt == PORT_ATTEMPTS - 1:
                break
        raise AssertionError(f"{self.program[0]} did not start:\n{self.log}")

    def launch(self) -> None:
        """Start again on the same port, without waiting."""
        self._launch(self.port)

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """SIGKILL; the exit code."""
        return self._end(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal, without waiting for its effect."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait for the end of the process; the exit code."""
        assert self._process is not None
        return self._process.wait(STOP_DEADLINE_S)

    def restart(self, way: str = "SIGTERM", down_s: float = 0) -> None:
        """End the process in one of RESTART_WAYS, and start it again on the same directory after
        `down_s` seconds."""
        if way.startswith("SAVE"):
            with self.client() as client:
                assert client.call("SAVE") == Simple("OK")
        if way.startswith("BGREWRITEAOF"):
            self.rewrite_journal()
        if way.endswith("SIGTERM"):
            self.stop()
        else:
            self.kill()
        end_s = time.monotonic() + down_s
        wait_until(lambda: time.monotonic() >= end_s, what="the time without a server")
        self.start()

    def rewrite_journal(self) -> None:
        """BGREWRITEAOF, and wait until it is done."""
        with self.client() as client:
            reply = client.call("BGREWRITEAOF")
            assert not isinstance(reply, Error), reply
            wait_until(
                lambda: client.info("persistence"),
                lambda info: (
                    info["aof_rewrite_in_progress"] == "0"
                    and info.get("aof_rewrite_scheduled", "0") == "0"
                ),
                "the end of the journal's rewrite",
            )

    def client(self, protocol: int = 2) -> RawClient:
        return RawClient(self.port, protocol)

    def reset(self) -> None:
        """Empty the server and wait until no client of an earlier test is still blocked."""
        with self.client() as client:
            client.wait_blocked(0)
            assert client.call("FLUSHALL") == Simple("OK")
            # A copy of the directory must not depend on the tests before.
            if int(client.info("persistence").get("aof_current_size", 0)) > JOURNAL_KEPT_BYTES:
                client.call("BGREWRITEAOF")
                wait_until(
                    lambda: client.info("persistence")["aof_rewrite_in_progress"] == "0",
                    what="a small journal",
                )

    def _launch(self, port: int) -> None:
        environment = _environment(self.program, os.environ)
        command, folder = self.command(port), self.directory.parent
        with self.log_path.open("ab") as log:
            forked = None
            if self._may_fork:
                usual = _environment(self.program, ENVIRONMENT)
                forked = forking.start(command, log, folder, environment, usual)
            self._process = forked or subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=environment,
                preexec_fn=die_with_parent,
            )

    def _becomes_ready(self, port: int) -> bool:
        wait_until(
            lambda: not self.is_alive() or answers_ping(port),
            what=f"PING on port {port} (log: {self.log_path})",
            deadline_s=START_DEADLINE_S,
        )
        return self.is_alive()

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(number)
        try:
            return self._process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"{number.name} did not end the server:\n{self.log}") from None


def _needs(program: Sequence[str]) -> dict[str, str]:
    """The options that redis-server needs to behave like millstream by default."""
    if Path(program[0]).name != "redis-server":
        return {}
    return {"appendonly": "yes", "save": "", "bind": "127.0.0.1"}


def _environment(program: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a server need not execute itself again to get huge pages, which
    would take a fifth of the time of a start."""
    environment = dict(given)
    if list(program) != server_program() or huge_pages.system_setting() != "madvise":
        return environment
    return huge_pages.asking(environment) or environment


def answers_ping(port: int) -> bool:
    """True if a server on this port answers PING now."""
    try:
        with RawClient(port, timeout_s=2.0) as client:
            return client.call("PING") == Simple("PONG")
    except (OSError, ConnectionClosed):
        return False


def die_with_parent() -> None:
    """Make the server end with the test run, even if the test run is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
