"""The age of a stream's watermark, with clocks that only the test moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millstream.client.core.follower import Follower
from millstream.client.core.options import Options
from millstream.client.core.position import Moment, Oldest
from millstream.client.core.shard_order import Servers
from millstream.client.core.shards import Shard
from millstream.client.core.steps import Answer, Notify, Steps, Together, Wait

OPENED_S = 1_000.0
OPTIONS = Options(100, "strict", "raise", 30.0, None, True)
ENTRY = ["1000000.0", "n", "1"]


class Reader:
    """A stream, whose requests the test answers."""

    def __init__(self, keys: tuple[str, ...], **options: Any) -> None:
        self.keys = keys
        self.now_s = 0.0
        servers = Servers("server", None)
        self.follower = Follower(
            servers, replace(OPTIONS, **options), lambda: self.now_s, lambda: OPENED_S + self.now_s
        )
        opening = self.follower.open([Shard(key) for key in keys], Oldest(), create=False)
        info = {"incarnation": 7, "sealed": False, "children": [], "parents": []}
        self.run(opening, [[info] * len(keys)])

    def run(self, steps: Steps[Any], *results: Any) -> Any:
        answers = list(results)
        result = None
        try:
            while True:
                step = steps.send(result)
                result = None
                if isinstance(step, Together):
                    [command, *_] = step.asks[0].commands
                    raw = answers.pop(0)
                    result = [[command.read(raw)]] if command.name == "TMREAD" else raw
                elif isinstance(step, Wait):
                    reply = answers.pop(0)
                    if isinstance(reply, list) and not reply[0][3]:
                        self.now_s += step.asks[0].wait_s
                    result = [Answer(step.asks[0], [reply])]
                else:
                    assert isinstance(step, Notify)
        except StopIteration as ended:
            return ended.value

    def read(self, *entries: list[str], next_id: str = "1000000.0", ended: int = 0) -> Any:
        """One call, with a reply that has these entries of the first shard."""
        rows = [[key, "0.0", next_id, [], ended, 7] for key in self.keys]
        rows[0][3] = list(entries)
        return self.run(self.follower.read(0.5), rows)

    def age_s(self) -> float:
        return self.follower.metrics()["watermark_age_s"]


@pytest.mark.parametrize(
    ("keys", "options"),
    [
        (("s",), {}),
        (("s", "t"), {"order": "available"}),
        (("s", "t"), {"clock": False}),
    ],
    ids=repr,
)
def test_the_age_of_an_idle_stream_is_that_of_its_last_reply(
    keys: tuple[str, ...], options: Any
) -> None:
    reader = Reader(keys, **options)
    reader.read()
    for _ in range(3):
        reader.now_s += 100
        assert reader.age_s() == 100
        reader.read()
        assert reader.age_s() == 0


def test_the_age_grows_while_records_are_not_read() -> None:
    reader = Reader(("s",), batch=2)
    reader.read(ENTRY, ["1000000.1", "n", "2"], next_id="1000000.1")
    reader.now_s = 50
    assert reader.age_s() == 50  # one record is buffered
    assert reader.follower.take() is not None
    assert reader.age_s() == 50  # there may be more: the reply was full
    reader.read()
    assert reader.age_s() == 0


def test_the_age_grows_while_a_reservation_holds_records_back() -> None:
    reader = Reader(("s",))
    held = f"1000000.{2**64 - 1}"
    reader.read(next_id=held)
    reader.now_s = 50
    reader.read(next_id=held)
    assert reader.age_s() == 50.5
    reader.read(ENTRY, next_id="1020000.0")
    assert reader.age_s() == 0


def test_the_age_of_a_stream_from_a_time_on_does_not_grow() -> None:
    reader = Reader(("s",))
    place = Moment(1_000_000).place
    reader.follower._lineage.since = place
    for _ in range(3):
        reader.now_s += 10
        reader.read(next_id=str(place))
        assert reader.age_s() == 0


def test_a_stream_that_has_ended_has_no_age() -> None:
    reader = Reader(("s",))
    info = {"children": [], "incarnation": 7, "handed-out-id": "1.0"}
    rows = [["s", "0.0", "1000000.0", [], 1, 7]]
    assert reader.run(reader.follower.read(5.0), rows, info) is None
    reader.now_s += 1000
    assert (reader.follower.ended, reader.age_s()) == (True, 0)
