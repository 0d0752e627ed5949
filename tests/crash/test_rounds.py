"""Everything that was ever answered is true after kill -9 at random moments under mixed load.

A few rounds; `python -m tests.crash.rounds --rounds 50` plays more.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.rounds import DIRECTIVES, Rounds
from tests.support.data_directory import cut_end, last_journal, size_or_nothing
from tests.support.history import BrokenHistory
from tests.support.resp import Simple
from tests.support.server import Server
from tests.support.waiting import wait_until

ROUNDS = 4


@pytest.mark.parametrize("mode", ["always", "everysec", "no"])
def test_acknowledged_writes_survive_kill_9(new_server: Callable[..., Server], mode: str) -> None:
    """The machine lives: in every mode, confirmed writes are at least in the page cache. Every
    second round has appendfsync-groups everysec."""
    server = new_server("data", {**DIRECTIVES, "appendfsync": mode}).start()
    rounds = Rounds(server, seed=1)
    for number in range(ROUNDS):
        with server.client() as client:
            groups = ["always", "everysec"][number % 2]
            assert client.call("CONFIG", "SET", "appendfsync-groups", groups) == Simple("OK")
        rounds.play()


def wait_for_journal(server: Server, size_bytes: int) -> None:
    """While a rewrite begins the journal is short."""
    wait_until(
        lambda: size_or_nothing(last_journal(server.directory)), lambda size: size > size_bytes
    )


def test_a_round_notices_a_lost_end_of_the_journal(
    new_server: Callable[..., Server],
) -> None:
    """The test above can fail."""

    cut: list[Path] = []

    def kill_and_cut(server: Server) -> int:
        wait_for_journal(server, 30_000)
        code = server.kill()
        journal = last_journal(server.directory)
        if size_or_nothing(journal) > 20_000:  # else a rewrite began just before the kill
            cut_end(journal, 20_000)  # more than the unanswered requests
            cut.append(journal)
        return code

    rounds = Rounds(new_server().start(), seed=1, end=kill_and_cut)

    def play_until_cut() -> None:
        for _ in range(10):
            rounds.play()
            assert not cut, "the round has not noticed it"

    with pytest.raises(BrokenHistory):
        play_until_cut()
