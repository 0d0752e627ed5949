"""A cluster on this machine: `millstream serve --shards N` with a range of free ports."""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from millstream.server.cluster.unix_sockets import ask_supervisor

from .client import RawClient
from .resp import Reply
from .server import PROGRAM, START_DEADLINE_S, Server
from .waiting import wait_until

ATTEMPTS = 50
FIRST_PORT, LAST_PORT = 20_000, 32_000  # below the ports that the system gives to clients


def free_range(count: int) -> int:
    """The first of `count` neighbouring ports that are free at this moment."""
    for _ in range(ATTEMPTS):
        first = random.randrange(FIRST_PORT, LAST_PORT)
        try:
            with ExitStack() as probes:
                for port in range(first, first + count):
                    probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError(f"no {count} neighbouring ports are free")


class NodeClient(RawClient):
    """A client whose requests are lines of words."""

    def line(self, words: str) -> Reply:
        return self.call(*words.split())


class Shards(Server):
    """The supervisor's process. `port` is the one before those of the nodes."""

    def __init__(
        self,
        directory: Path,
        directives: Mapping[str, str] | None = None,
        count: int = 3,
        options: Sequence[str] = (),
    ) -> None:
        program = [PROGRAM, "serve", "--shards", str(count), *options]
        super().__init__(directory, directives, program)
        self.count = count
        self.port = free_range(count + 1)

    def ports(self) -> list[int]:
        return [self.port + number for number in range(1, self.count + 1)]

    def node(self, number: int, protocol: int = 2) -> NodeClient:
        """A connection to node `number`, from 1."""
        return NodeClient(self.port + number, protocol)

    def status(self) -> dict[str, Any]:
        """The processes as the supervisor describes them."""
        found = ask_supervisor(self.directory)
        assert found is not None
        return found

    def pid_of(self, number: int) -> int:
        with self.node(number) as client:
            return int(client.info("server")["process_id"])

    def _launch(self, port: int) -> None:
        self._starts = len(self._ready_lines())
        super()._launch(port)

    def _becomes_ready(self, port: int) -> bool:
        wait_until(
            lambda: not self.is_alive() or len(self._ready_lines()) > self._starts,
            what=f"{self.count} nodes (log: {self.log_path})",
            deadline_s=START_DEADLINE_S,
        )
        return self.is_alive()

    def _ready_lines(self) -> list[str]:
        return re.findall(r"ready +millstream \S+ \d+ nodes listen", self.log)
