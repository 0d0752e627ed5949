"""Questions of a gateway to the supervisor that has not started it: the ports of the nodes, and
which of them run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millstream.errors import StartError
from millstream.server.cluster.states import FAILED, NodeState
from millstream.server.cluster.unix_sockets import SUPERVISOR, ask_supervisor, connected_socket

BETWEEN_S = 1.0
ANSWER_S = 5.0

LOOPBACK = {"*": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1", "::*": "::1"}
"""Where processes of this machine reach a server that listens on all its addresses."""


class SupervisorQuestions:
    """Asks the supervisor of `folder` once a second. `host`, `ports` and `tls_ports`, by node from
    0, are those of the last answer; nodes without TLS have no `tls_ports`. Without an answer, all
    nodes have failed."""

    def __init__(self, folder: Path) -> None:
        """Ask the first time. StartError if no supervisor answers, or a gateway cannot reach the
        nodes."""
        self.folder = str(folder)
        self._folder = folder
        answer = ask_supervisor(folder)
        if answer is None:
            raise StartError(
                f"no nodes run in {folder}: start them with `millstream serve --dir {folder} "
                "--shards N`"
            )
        if not answer["port"]:
            raise StartError(
                f"the nodes of {folder} have no port without TLS, which a gateway needs: start "
                "them with --port"
            )
        self.host, self.ports, self.tls_ports = _places(answer)
        self._task: asyncio.Task[None] | None = None

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        note_states: Callable[[dict[int, NodeState]], object],
        note_moved: Callable[[], object],
    ) -> None:
        """Ask from now on. `note_moved` is called when the nodes have other ports."""
        self._task = loop.create_task(self._keep_asking(note_states, note_moved))

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _keep_asking(
        self,
        note_states: Callable[[dict[int, NodeState]], object],
        note_moved: Callable[[], object],
    ) -> None:
        while True:
            answer = await self._ask()
            if answer is None or len(answer["nodes"]) != len(self.ports):
                note_states({node + 1: NodeState(FAILED, 0, 0) for node in range(len(self.ports))})
            else:
                if _places(answer) != (self.host, self.ports, self.tls_ports):
                    self.host, self.ports, self.tls_ports = _places(answer)
                    note_moved()
                note_states(
                    {
                        int(number): NodeState(node["health"], 0, node["frame"])
                        for number, node in answer["nodes"].items()
                    }
                )
            await asyncio.sleep(BETWEEN_S)

    async def _ask(self) -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(
                    sock=connected_socket(self._folder, SUPERVISOR)
                )
                try:
                    answer: dict[str, Any] = json.loads(await reader.readline())
                finally:
                    writer.close()
        except (OSError, ValueError):
            return None
        return answer if answer.get("port") else None


def _places(answer: dict[str, Any]) -> tuple[str, list[int], list[int]]:
    """The host, the ports and the TLS ports of the nodes in an answer."""
    host = str(answer["hosts"][0]).removeprefix("-")
    numbers = range(1, len(answer["nodes"]) + 1)
    ports, tls_ports = (
        [answer[name] + number for number in numbers] if answer[name] else []
        for name in ("port", "tls_port")
    )
    return LOOPBACK.get(host, host), ports, tls_ports
