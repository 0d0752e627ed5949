"""The defects of an earlier stream library, one test each: this client does not have them."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from tests.client.apis import Api, ids, rest, take
from tests.client.conftest import url_of
from tests.support.server import Server

from millstream.client import InvalidPosition, InvalidStream, RecordsExpired, ShardUnavailable


def add(ms: Any, key: str, *ids: str) -> None:
    """Append entries with these IDs, each with its ID as the field `n`."""
    for entry_id in ids:
        ms.execute_command("XADD", key, entry_id.replace(".", "-"), "n", entry_id)


def saved(stream: Any) -> Any:
    """The token, as a program saves and loads it."""
    return json.loads(json.dumps(stream.token))


@pytest.fixture
def far_from_utc() -> Iterator[None]:
    """A local time zone that is not UTC."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Asia/Kolkata"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


def test_a_token_of_latest_covers_the_next_append(ms: Any) -> None:
    ms.tappend("s", {"n": "old"})
    with ms.stream(["s", "t"]) as stream:
        token = saved(stream)
        assert next(stream) is None
        later = saved(stream)
    ms.tappend("s", {"n": "new"})
    for position in (token, later):
        with ms.stream(["s", "t"], position) as stream:
            assert [record["n"] for record in take(stream, 1)] == ["new"]
            assert next(stream) is None


@pytest.mark.parametrize("position", ["TRIM_HORIZON", "Trim_Horizon", "trim_horizon"])
def test_trim_horizon_in_capitals_is_not_latest(ms: Any, position: str) -> None:
    ms.tappend("s", {"n": "old"})
    with ms.stream("s", position) as stream:
        assert take(stream, 1)[0]["n"] == "old"
    with ms.stream("s", "LATEST") as stream:
        assert next(stream) is None


@pytest.mark.usefixtures("far_from_utc")
def test_naive_and_aware_times_are_both_understood(ms: Any) -> None:
    moment = datetime(2021, 3, 4, 5, 6, 7, 250_000, tzinfo=UTC)
    at_ms = int(moment.timestamp() * 1000)
    add(ms, "s", f"{at_ms - 1}.0", f"{at_ms}.0", f"{at_ms + 1}.0")
    ms.tseal("s")

    class Timestamp:
        def timestamp(self) -> float:
            return moment.timestamp()

    local = moment.astimezone().replace(tzinfo=None)
    assert local.hour != moment.hour
    elsewhere = moment.astimezone(timezone(timedelta(hours=-7)))
    for position in (moment, local, elsewhere, Timestamp()):
        with ms.stream("s", position) as stream:
            assert ids(rest(stream)) == [f"{at_ms}.0", f"{at_ms + 1}.0"], position


def test_a_time_is_exact_to_the_millisecond(ms: Any) -> None:
    moment = datetime(2021, 3, 4, 5, 6, 7, 999_000, tzinfo=UTC)
    at_ms = 1_614_834_367_999
    add(ms, "s", f"{at_ms - 1}.7", f"{at_ms}.0", f"{at_ms}.1", f"{at_ms + 1}.0")
    ms.tseal("s")
    micro = timedelta(microseconds=1)
    wanted = {
        moment - micro: [f"{at_ms}.0", f"{at_ms}.1", f"{at_ms + 1}.0"],
        moment: [f"{at_ms}.0", f"{at_ms}.1", f"{at_ms + 1}.0"],
        moment + micro: [f"{at_ms + 1}.0"],
        moment + timedelta(milliseconds=1): [f"{at_ms + 1}.0"],
        moment + timedelta(milliseconds=2): [],
    }
    for position, found in wanted.items():
        with ms.stream("s", position) as stream:
            records = rest(stream)
        assert ids(records) == found, position
        for record in records:
            assert record.created_at == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
                milliseconds=record.id.ms
            )


def test_moving_to_a_time_does_not_read_the_stream(ms: Any) -> None:
    with ms.pipeline() as pipe:
        for n in range(5000):
            pipe.xadd("s", {"n": "x" * 100}, id=f"{1000 + n}-0")
        pipe.execute()
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=5990)

    def sent_bytes() -> int:
        return int(ms.info("stats")["total_net_output_bytes"])

    def reads() -> int:
        return int(ms.info("commandstats")["cmdstat_tmread"]["calls"])

    with ms.stream(["s", "t"], "trim_horizon") as stream:
        assert take(stream, 1)[0].id.ms == 1000
        before, calls = sent_bytes(), reads()
        stream.move_to(moment)
        assert reads() == calls + 1  # for both shards
        assert sent_bytes() - before < 20_000
        assert [record.id.ms for record in take(stream, 2)] == [5990, 5991]


def test_a_failed_move_changes_nothing(api: Api, servers: Callable[[int], list[Server]]) -> None:
    one, two = servers(2)
    first, second = api.connect(url_of(one)), api.connect(url_of(two), timeout=1.0)
    add(first, "s", "1.0", "3.0", "5.0")
    add(second, "t", "2.0", "4.0")
    shards = ["s", api.shard("t", second)]
    with first.stream(shards, "trim_horizon", batch=2) as stream:
        assert ids(take(stream, 2)) == ["1.0", "2.0"]
        before = saved(stream), stream.watermark, stream.shards, stream.gaps
        for wrong in ("oldest", 17, None, {}, {"v": 2}, {**saved(stream), "v": 2}, b"latest"):
            with pytest.raises(InvalidPosition):
                stream.move_to(wrong)
        with pytest.raises(InvalidStream):
            stream.move_to({"v": 1, "shards": {"other": {"at": "1.0"}}})
        two.stop()
        for position in ("trim_horizon", "latest", datetime(1970, 1, 1, tzinfo=UTC)):
            with pytest.raises(redis.ConnectionError):
                stream.move_to(position)
        assert (saved(stream), stream.watermark, stream.shards, stream.gaps) == before
        two.start()
        assert ids(take(stream, 3)) == ["3.0", "4.0", "5.0"]


def test_a_move_forgets_shards_that_were_closed_before(ms: Any) -> None:
    add(ms, "s", "1.0", "2.0")
    ms.tseal("s", "left", "right")
    add(ms, "left", "3.0", "5.0")
    add(ms, "right", "4.0")
    whole = ["1.0", "2.0", "3.0", "4.0", "5.0"]
    with ms.stream("s", "trim_horizon") as stream:
        beginning = saved(stream)
        assert ids(take(stream, 5)) == whole
        assert sorted(stream.shards) == ["left", "right"]
        for position in ("trim_horizon", beginning, datetime(1970, 1, 1, tzinfo=UTC)):
            stream.move_to(position)
            assert stream.shards == ["s"]
            assert ids(take(stream, 5)) == whole
            assert sorted(stream.shards) == ["left", "right"]
        stream.move_to("latest")
        assert sorted(stream.shards) == ["left", "right"]
        assert next(stream) is None


def test_children_appear_once_after_a_restore_during_a_split(ms: Any) -> None:
    add(ms, "s", "1.0", "2.0", "3.0")
    ms.tseal("s", "left", "right")
    add(ms, "left", "4.0", "6.0")
    add(ms, "right", "5.0", "7.0")
    ms.tseal("left", "both")
    ms.tseal("right", "both")
    add(ms, "both", "8.0")
    ms.tseal("both")
    whole = [f"{n}.0" for n in range(1, 9)]
    for batch in (1, 2, 100):
        for cut in range(9):
            with ms.stream("s", "trim_horizon", batch=batch) as stream:
                before = ids(take(stream, cut))
                token = saved(stream)
            with ms.stream("s", token, batch=batch) as stream:
                assert before + ids(rest(stream)) == whole, (batch, cut)
                assert stream.ended


def test_children_are_read_once_after_their_parent_is_deleted(ms: Any) -> None:
    """The token names the children as soon as the end of their parent has been fetched."""
    for cut in (1, 2, 3):
        ms.flushall()
        add(ms, "s", "1.0", "2.0", "3.0")
        ms.tseal("s", "left", "right")
        add(ms, "left", "4.0")
        add(ms, "right", "5.0")
        with ms.stream("s", "trim_horizon") as stream:
            take(stream, cut)
            token = saved(stream)
        ms.delete("s")
        with ms.stream("s", token, on_gap="skip") as stream:
            assert ids(take(stream, 2)) == ["4.0", "5.0"]
            lost = [(gap.shard, str(gap.after), gap.resumed) for gap in stream.gaps]
            assert lost == ([("s", f"{cut}.0", None)] if cut < 3 else [])


@pytest.mark.parametrize("order", ["strict", "available"])
@pytest.mark.parametrize("batch", [1, 2, 100])
def test_the_token_of_a_shards_last_record_names_the_children(
    ms: Any, batch: int, order: str
) -> None:
    add(ms, "parent", "5.0")
    options: dict[str, Any] = {"batch": batch, "order": order, "clock": False}
    with ms.stream("parent", "trim_horizon", **options) as stream:
        assert ids(take(stream, 1)) == ["5.0"]
        add(ms, "parent", "6.0")
        ms.tseal("parent", "left", "right")
        add(ms, "left", "7.0")
        ms.tseal("left")
        assert ids(take(stream, 1)) == ["6.0"]
        token = saved(stream)
    ms.delete("parent")
    with ms.stream("parent", token, **options) as stream:
        add(ms, "right", "8.0")
        assert ids(take(stream, 2)) == ["7.0", "8.0"]
        assert stream.gaps == []


def read_until_unavailable(stream: Any) -> list[str]:
    found: list[str] = []
    while True:
        try:
            record = stream.read(timeout=5)
        except ShardUnavailable:
            return found
        found += [] if record is None else [str(record.id)]


def test_a_failing_shard_does_not_lose_records_of_others(
    api: Api, servers: Callable[[int], list[Server]]
) -> None:
    one, two = servers(2)
    first, second = api.connect(url_of(one)), api.connect(url_of(two), timeout=1.0)
    add(first, "s", "1.0", "3.0", "5.0", "7.0")
    add(second, "t", "2.0", "4.0", "6.0", "8.0")
    shards = ["s", api.shard("t", second)]
    strict = first.stream(shards, "trim_horizon", batch=1, max_wait=0.2)
    loose = first.stream(shards, "trim_horizon", batch=1, max_wait=0.2, order="available")
    two.kill()
    strictly = read_until_unavailable(strict)
    loosely = read_until_unavailable(loose)
    assert strictly == []  # the other shard may have a lower record
    assert loosely == ["1.0", "3.0", "5.0", "7.0"]
    two.start()
    for stream, found in ((strict, strictly), (loose, loosely)):
        while len(found) < 8:
            with suppress(ShardUnavailable):
                record = stream.read(timeout=5)
                found += [str(record.id)] if record is not None else []
    assert strictly == [f"{n}.0" for n in range(1, 9)]
    assert sorted(loosely) == strictly
    strict.close()
    loose.close()


def test_a_restore_reports_lost_entries(ms: Any) -> None:
    add(ms, "s", "1.0", "2.0", "3.0", "4.0", "5.0")
    ms.tseal("s")
    with ms.stream("s", "trim_horizon") as stream:
        assert ids(take(stream, 1)) == ["1.0"]
        token = saved(stream)
    ms.xtrim("s", maxlen=2, approximate=False)
    with ms.stream("s", token) as stream:
        with pytest.raises(RecordsExpired) as lost:
            next(stream)
        error = lost.value
        assert (error.shard, str(error.after), str(error.resumed)) == ("s", "1.0", "3.0")
        assert ids(rest(stream)) == ["4.0", "5.0"]
        assert [(str(gap.after), str(gap.resumed)) for gap in stream.gaps] == [("1.0", "3.0")]
    with ms.stream("s", token, on_gap="skip") as stream:
        assert ids(rest(stream)) == ["4.0", "5.0"]
        assert len(stream.gaps) == 1


def test_order_does_not_depend_on_the_first_request(ms: Any) -> None:
    add(ms, "a", "1.0", "2.0", "7.0")
    add(ms, "b", "2.0", "3.0", "7.0")
    add(ms, "c", "0.5", "2.0", "6.0")
    wanted = [
        ("0.5", "c"),
        ("1.0", "a"),
        ("2.0", "a"),
        ("2.0", "b"),
        ("2.0", "c"),
        ("3.0", "b"),
        ("6.0", "c"),
        ("7.0", "a"),
        ("7.0", "b"),
    ]
    for shards in itertools.permutations("abc"):
        for batch in (1, 2, 100):
            with ms.stream(list(shards), "trim_horizon", batch=batch) as stream:
                found = [(str(record.id), record.shard) for record in take(stream, 9)]
            assert found == wanted, (shards, batch)


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_a_split_stream_is_ordered_and_resumes_at_every_cut(ms: Any, batch: int) -> None:
    records = {"S0": ["00"], "S1": ["11", "12", "13"], "S2": ["24", "25", "26"]}
    order = ["00", "11", "12", "24", "25", "26", "13"]
    for name, numbers in records.items():
        for number in numbers:
            ms.xadd(name, {"n": "R" + number}, id=f"{100 + order.index(number)}-0")
        if name == "S0":
            ms.tseal("S0", "S1", "S2")
    wanted = ["R" + number for number in order]
    for cut in range(8):
        with ms.stream("S0", "trim_horizon", batch=batch) as stream:
            found = [record["n"] for record in take(stream, cut)]
            token = saved(stream)
        with ms.stream("S0", token, batch=batch) as stream:
            found += [record["n"] for record in take(stream, 7 - cut)]
            assert next(stream) is None
        assert found == wanted, cut
