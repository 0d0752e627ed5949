"""The commands of docs/migrating.md are run, in their order, from a real Redis to a new server."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.server import Server, redis_program
from tests.support.waiting import wait_until
from tests.wire.test_import import fill
from tests.wire.test_tools import run

PAGE = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text()
NewServer = Callable[..., Server]
COMPARISON = "millstream compare redis://old:6379 redis://new:6455"
ON_EMPTY = (
    "millstream import redis://old:6379 --to redis://new:6455",
    "redis-cli -p 6455 REPLICAOF old.example 6379",
)


def commands() -> list[str]:
    blocks = re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).splitlines()
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


class Guide:
    """Runs a command of the page: `old` is a Redis, `new` a server on the directory `data`."""

    def __init__(self, old: Server, new: Server) -> None:
        self._old = old
        self._new = new
        self._is_running = False

    def prepare(self, command: str) -> None:
        """Give a command the new server that its section has."""
        if command == COMPARISON:
            self.run("millstream import dump.rdb --dir data")
        elif command in ON_EMPTY:
            self._stop()
            shutil.rmtree("data")

    def run(self, command: str) -> str:
        """The output of a command, which must succeed."""
        line = command.replace("old:6379", f"127.0.0.1:{self._old.port}")
        line = line.replace("old.example 6379", f"127.0.0.1 {self._old.port}")
        line = line.replace("new.example 6455", f"127.0.0.1 {self._new.port}")
        line = line.replace("-p 6379", f"-p {self._old.port}")
        if line.endswith("--dir data"):
            self._stop()
            if "import" in line:
                shutil.rmtree("data", ignore_errors=True)
        elif "6455" in line:
            self._start()
        line = line.replace("new:6455", f"127.0.0.1:{self._new.port}")
        line = line.replace("-p 6455", f"-p {self._new.port}")
        words = shlex.split(line)
        if words[0] == "redis-cli":
            if "-p" not in words:
                words[1:1] = ["-p", str(self._old.port)]
            return subprocess.run(words, check=True, capture_output=True, text=True).stdout
        if words[1] == "serve":
            self._start()
            return ""
        if words[-1] == "--follow":
            return self._follow(words)
        done = run(*words[1:])
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def _start(self) -> None:
        if not self._is_running:
            self._new.start()
            self._is_running = True

    def _stop(self) -> None:
        if self._is_running:
            self._new.kill()
            self._is_running = False

    def _follow(self, words: list[str]) -> str:
        """Until the link is up, and Ctrl-C."""
        program = subprocess.Popen(
            [sys.executable, "-m", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        with self._new.client() as client:
            wait_until(
                lambda: b"master_link_status:up" in client.call("INFO", "replication"),
                deadline_s=60,
            )
        program.send_signal(signal.SIGINT)
        program.wait()
        return ""


def test_the_commands_of_the_guide_work(
    new_server: NewServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = new_server("old", {"appendonly": "yes"}, redis_program()).start()
    new = new_server("data")
    monkeypatch.chdir(new.directory.parent)
    assert new.directory.name == "data"
    with old.client() as client:
        fill(client)
        client.call("ACL", "SETUSER", "user", "on", ">password", "~*", "&*", "+@all")
    guide = Guide(old, new)
    found = commands()
    assert len(found) >= 14
    assert {COMPARISON, *ON_EMPTY} <= {*found}
    for command in found:
        guide.prepare(command)
        guide.run(command)
        for name in ("dump.rdb", "appendonlydir"):
            source = old.directory / name
            if source.is_file() and not Path(name).exists():
                shutil.copy(source, name)
            elif source.is_dir() and not Path(name).exists():
                shutil.copytree(source, name)
