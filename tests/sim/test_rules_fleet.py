"""Seeds of a fleet whose clients use the rules of groups, and the promises that are checked."""

from __future__ import annotations

import pytest
from tests.sim.data import Data, Group, Stream
from tests.sim.promises import BrokenPromise
from tests.sim.replay import Replay
from tests.sim.rules_fleet import RulesFleet, play

SEEDS = 21
STATES = ("in flight", "parked", "waiting", "dead", "scheduled")
EFFECTS = {
    b"GROUPRULES", b"PICK", b"DELIVER", b"TAKE", b"CLAIM", b"WAIT", b"DEADLINE", b"DEAD", b"COPIED",
    b"ACK", b"SCHEDULE", b"UNSCHEDULE", b"FIRE", b"POLICY", b"EVICT", b"XDEL",
    b"CONSUMERDROP",
}  # fmt: skip


def test_the_rules_of_groups_hold_after_any_fault() -> None:
    """Also after full syncs and promotions of servers with entries in each state."""
    events: set[str] = set()
    effects: set[bytes] = set()
    for seed in range(SEEDS):
        fleet = RulesFleet(seed)
        events |= fleet.run().keys()
        effects |= fleet.effects()
    kinds = {
        f"{kind} with {state} entries" for kind in ("promotion", "full sync") for state in STATES
    }
    assert kinds - events == set()
    assert EFFECTS - effects == set()


@pytest.mark.parametrize("seed", [111, 142, 173])
def test_seeds_that_have_failed(seed: int) -> None:
    play(seed)


ONE = (1, 1)
TWO = (2, 1)
PICK = ["PICK", "s", "g", "c", "2-1", "50", "2", "100", "0"]
RULES = ["GROUPRULES", "s", "g", "TIMEOUT", "100"]
LIMIT = [*RULES, "MAXDELIVER", "1", "DEADLETTER", "d"]
ORDER = [*RULES, "ORDER", "FIELD", "k", "7"]
FILTER = [*RULES, "WHERE", "3", "k", "EQ", "b"]
COPY = ["APPEND", "d", "9-1", "k", "a", "dead_stream", "s", "dead_id", "1-1", "dead_group", "g",
        "dead_consumer", "", "dead_deliveries", "1", "dead_reason", "timeout", "dead_text", "",
        "dead_time", "1", "dead_hops", "1"]  # fmt: skip
DELIVER = ["DELIVER", "s", "g", "c", "1-1", "1-1", "50", "1", "100", "0", "keep"]
AGAIN = ["TAKE", "s", "g", "c", "200", "100", "0", "1-1"]

ACK = ["ACK", "s", "g", "1-1"]


def replayed(*effects: list[str]) -> Replay:
    """Two entries of a stream s, whose key is a, its group g, a stream d; then these effects."""
    replay = Replay(Data())
    made = replay.data.databases[0]
    made[b"s"], made[b"d"] = Stream(1), Stream(2)
    for entry_id in (ONE, TWO):
        made[b"s"].append(entry_id, (b"k", b"a"))
    made[b"s"].groups[b"g"] = Group((0, 0), (0, 0), 0, 0, consumers={b"c": None, b"e": None})
    for name, *words in effects:
        getattr(replay, f"_apply_{name.lower()}")(*(word.encode() for word in words))
    replay._judge_copies()
    return replay


@pytest.mark.parametrize(
    ("effects", "sentence"),
    [
        ([LIMIT, DELIVER, AGAIN], "more than 1 times"),
        ([LIMIT, DELIVER, COPY], "copied and still pending"),
        ([LIMIT, DELIVER, COPY, ACK, [*COPY[:2], "9-2", *COPY[3:]]], "copied and not pending"),
        ([ORDER, [*PICK, "2", "1-1", "2-1"]], "has RUN 1"),
        ([ORDER, [*PICK, "1", "2-1", "1-1"]], "comes before"),
        ([ORDER, [*PICK, "1", "1-1", "2-1"], [*PICK, "1", "2-1"]], "is busy"),
        ([ORDER, DELIVER], "has an order and gives all"),
        ([FILTER, [*PICK, "1", "1-1"]], "gets {(1, 1)} up to"),
        ([[*FILTER[:-1], "a"], [*PICK, "1", "1-1"]], "gets {(1, 1)} up to"),
        ([[*RULES, "PAUSED", "60"], DELIVER], "is paused until 60"),
        ([[*RULES, "MAXINFLIGHT", "1"], [*PICK, "2", "1-1", "2-1"]], "at most 1"),
        (
            [["POLICY", "s", "0", "0", "0", "exact", "2", "0", "0", "0"], ["EVICT", "s", "2-1"]],
            "which group b'g' holds",
        ),
        ([["SCHEDULE", "s", "9", "1", "", "k", "a"], ["FIRE", "s", "9", "1", "8-0"]], "before its"),
    ],
)  # fmt: skip
def test_a_broken_promise_is_noticed(effects: list[list[str]], sentence: str) -> None:
    with pytest.raises(BrokenPromise) as caught:
        replayed(*effects)
    assert sentence in str(caught.value)


def test_kept_promises_are_accepted() -> None:
    replayed(LIMIT, DELIVER, COPY, ACK, ["COPIED", "s", "g", "timeout", "1"])
    replayed(ORDER, [*PICK, "1", "1-1", "2-1"], ACK, [*PICK, "1", "2-1"])
    replayed(FILTER, [*PICK, "0"])
