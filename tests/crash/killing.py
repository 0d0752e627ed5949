"""The common part of the rounds of kill -9: clients that run until the server dies, a round, the
program.

`python -m tests.crash.rounds` and `python -m tests.crash.writer_rounds` play many rounds.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.support.client import ConnectionClosed, RawClient
from tests.support.server import Server
from tests.support.waiting import wait_until


class Target(Protocol):
    """The server to kill, or the primary that its replica replaces."""

    def client(self) -> RawClient: ...
    def kill(self) -> int: ...
    def start(self) -> object: ...


End = Callable[[Any], int]


def kill(target: Target) -> int:
    return target.kill()


class TalkingClient:
    """A thread that talks to the server on its own connection until the server dies."""

    def __init__(self, name: str, connection: RawClient) -> None:
        self.failure: BaseException | None = None
        self.connection = connection
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def talk(self) -> None:
        while True:
            self.act()

    def act(self) -> None:
        raise NotImplementedError

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive(), f"{self._thread.name} hangs"
        self.connection.close()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            self.talk()
        except (ConnectionClosed, ConnectionError):
            pass
        except BaseException as error:
            self.failure = error


def play_and_kill(
    server: Target,
    clients: Sequence[TalkingClient],
    answers: Callable[[], int],
    enough: int,
    end: End,
) -> None:
    """Let the clients talk until there are enough answers; then kill the server and start it again
    on its data."""
    for client in clients:
        client.start()
    wait_until(
        answers,
        lambda count: count >= enough or any(client.failure for client in clients),
        f"{enough} answers",
        deadline_s=60,
    )
    end(server)
    for client in clients:
        client.join()
    server.start()


class Playing(Protocol):
    def play(self) -> str: ...
    def finish(self) -> str: ...


def run(
    module: str,
    description: str | None,
    directives: Mapping[str, str],
    begin: Callable[[Server, int], Playing],
) -> int:
    """The program: a number of rounds on one directory, a line printed after each."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--appendfsync", default="always", choices=["always", "everysec", "no"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        all_directives = {**directives, "appendfsync": options.appendfsync}
        server = Server(Path(folder) / "data", all_directives).start()
        rounds = begin(server, options.seed)
        try:
            for count in range(1, options.rounds + 1):
                print(f"round {count}: {rounds.play()}", flush=True)
            print(rounds.finish())
        finally:
            server.kill()
    return 0
