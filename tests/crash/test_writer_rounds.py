"""Reservations survive kill -9: nothing answered is lost, nothing is visible too early, and no ID
is used twice.

A few rounds; `python -m tests.crash.writer_rounds --rounds 50` plays more.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.crash.writer_rounds import DIRECTIVES, WriterRounds
from tests.support.data_directory import cut_end, last_journal, size_or_nothing
from tests.support.server import Server

ROUNDS = 3


@pytest.mark.parametrize("mode", ["always", "everysec"])
def test_reservations_survive_kill_9(new_server: Callable[..., Server], mode: str) -> None:
    rounds = WriterRounds(new_server("data", {**DIRECTIVES, "appendfsync": mode}).start(), seed=1)
    for _ in range(ROUNDS):
        rounds.play()
    rounds.finish()


def test_a_round_notices_lost_completions(new_server: Callable[..., Server]) -> None:
    """The test above can fail."""
    cut = 0

    def kill_and_cut(server: Server) -> int:
        nonlocal cut
        code = server.kill()
        journal = last_journal(server.directory)
        if size_or_nothing(journal) > 8_000:  # else a rewrite began just before the kill
            cut_end(journal, 6_000)
            cut += 1
        return code

    rounds = WriterRounds(new_server("data", DIRECTIVES).start(), seed=1, end=kill_and_cut)

    def play_until_cut() -> None:
        for _ in range(10):
            rounds.play()
            assert not cut, "the round has not noticed it"

    with pytest.raises(AssertionError):
        play_until_cut()
