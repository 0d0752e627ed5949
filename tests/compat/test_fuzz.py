"""Several clients' random requests on millstream and on the installed redis-server.

Longer campaigns: `python -m tests.compat.fuzz --help`, and docs/testing.md.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.compat.fuzz import Difference, Fuzz, alike, described, new_fuzz
from tests.compat.fuzz_words import Play, Step, drawn, rows
from tests.support.resp import Reply
from tests.support.server import redis_program

SEEDS = 60


@pytest.fixture(scope="module")
def fuzz(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzz]:
    made = new_fuzz(tmp_path_factory.mktemp("fuzz"), redis_program())
    yield made
    for side in made.sides:
        side.server.kill()


def test_both_servers_send_the_same_replies_in_random_plays(fuzz: Fuzz) -> None:
    for seed in range(SEEDS):
        play = fuzz.drawn(seed)
        found = fuzz.difference(play)
        if found is not None:
            pytest.fail(f"seed {seed}:\n{described(*fuzz.shortest(play, found))}")


def test_a_difference_is_found_and_shown_in_its_shortest_form(fuzz: Fuzz) -> None:
    play = Play([2, 3], [
        Step(0, ["SET", "s", "1"]),
        Step(1, ["XADD", "t", "1-1", "a", "1"]),
        Step(1, ["XREAD", "BLOCK", "0", "STREAMS", "t", "$"]),
        Step(0, ["CONFIG", "SET", "port", "x"]),
        Step(0, ["GET", "s"]),
    ])  # fmt: skip
    found = fuzz.difference(play)
    assert found is not None
    assert found.at == 3
    short, again = fuzz.shortest(play, found)
    assert [step.words[0] for step in short.steps] == ["CONFIG"]
    assert again.kind == found.kind


def test_an_event_that_only_one_server_sends_is_found(fuzz: Fuzz) -> None:
    fuzz.theirs.control.call("CONFIG", "SET", "notify-keyspace-events", "")
    try:
        found = fuzz.difference(Play([2], [Step(0, ["SET", "s", "1"])]))
    finally:
        fuzz.theirs.control.call("CONFIG", "SET", "notify-keyspace-events", "KA")
    assert isinstance(found, Difference)
    assert found.words == ["events"]


@pytest.mark.parametrize(
    ("ours", "theirs", "are_alike"),
    [
        ([b"1-1", b"alice", 5, 2], [b"1-1", b"alice", 90, 2], True),
        ([b"1-1", b"alice", 5, 2], [b"1-1", b"alice", 5, 3], False),
        ([b"length", 5], [b"length", 6], False),
        ([b"idle", 5], [b"idle", 6], True),
        ([1, [b"a", b"b"]], [1, [b"a"]], False),
    ],
)
def test_only_times_may_differ(ours: Reply, theirs: Reply, are_alike: bool) -> None:
    assert alike(ours, theirs) is are_alike


def test_a_seed_repeats_its_play_and_draws_every_command() -> None:
    tokens: dict[str, frozenset[str]] = {name: frozenset() for name in rows()}
    assert drawn(7, tokens) == drawn(7, tokens)
    names = {step.words[0] for seed in range(100) for step in drawn(seed, tokens).steps}
    assert {name.split("|")[0].upper() for name in tokens} <= names
