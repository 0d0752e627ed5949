"""The rules of groups hold over kill -9."""

from __future__ import annotations

from collections.abc import Callable

from tests.crash.rules_rounds import DIRECTIVES, RulesRounds
from tests.support.server import Server

ROUNDS = 3
ROUNDS_MAX = 20


def test_the_rules_of_groups_survive_kill_9(new_server: Callable[..., Server]) -> None:
    directives = {**DIRECTIVES, "appendfsync": "always"}
    rounds = RulesRounds(new_server("data", directives).start(), seed=1)
    for number in range(ROUNDS_MAX):
        if number >= ROUNDS and rounds.has_dead():
            break
        rounds.play()
    rounds.finish()
