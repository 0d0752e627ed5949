"""Decisions of live reading without a server: offsets, shares of a limit, starts."""

from __future__ import annotations

import json
import pickle
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.pipeline import positions
from millstream.pipeline.packing import PackError, Row, pack, unpack
from millstream.pipeline.positions import (
    LARGEST,
    PLAIN_MAX,
    Division,
    Offset,
    Position,
    PositionError,
    named_positions,
)
from millstream.pipeline.range_plan import DataLossError, Losses
from millstream.pipeline.selection import before
from millstream.pipeline.server_connection import Address
from millstream.pipeline.source_options import LIVE, STREAM, OptionError, SourceOptions
from millstream.pipeline.start_offsets import Bound
from millstream.pipeline.stream_counters import StreamChoice
from millstream.pipeline.trigger_limit import share

NUMBERS = st.integers(0, LARGEST)
IDS = st.tuples(NUMBERS, NUMBERS)
POSITIONS = st.dictionaries(
    st.binary(max_size=8), st.builds(Position, IDS, st.none() | NUMBERS, NUMBERS), max_size=5
)
DIVISIONS = st.builds(Division, st.integers(0, 9), st.integers(0, 9))


@given(POSITIONS, st.booleans(), st.none() | POSITIONS, DIVISIONS)
def test_an_offset_is_restored_from_its_json(
    streams: dict[bytes, Position],
    is_initial: bool,
    begin: dict[bytes, Position] | None,
    division: Division,
) -> None:
    offset = Offset(streams, is_initial, begin, division)
    text = json.dumps(offset.to_json())
    assert Offset.from_json(json.loads(text)) == offset
    assert text.isascii()


@given(POSITIONS)
def test_equal_offsets_are_equal_texts(streams: dict[bytes, Position]) -> None:
    turned = dict(reversed(streams.items()))
    assert json.dumps(Offset(turned).to_json()) == json.dumps(Offset(streams).to_json())


ROWS = st.tuples(NUMBERS, NUMBERS, st.none() | NUMBERS, NUMBERS)


@given(st.dictionaries(st.binary(max_size=9), ROWS, max_size=20))
def test_packed_positions_are_restored(streams: dict[bytes, Row]) -> None:
    keys = tuple(sorted(streams))
    rows = [streams[key] for key in keys]
    packed = json.loads(json.dumps(pack(keys, rows)))
    assert unpack(packed) == (keys, rows)


def many(count: int) -> dict[bytes, Position]:
    """Streams as they are a while after a start: all written in the last minutes."""
    return {
        b"site:%05d" % number: Position(
            (1_795_385_000_000 + number * 7919 % 100_000, 0),
            number * 104_729 % 60,
            1 << 50 | number,
        )
        for number in range(count)
    }


def test_an_offset_of_many_streams_is_packed_and_restored() -> None:
    offset = Offset(many(PLAIN_MAX + 1), begin=many(PLAIN_MAX + 2), division=Division(3, 4))
    text = json.dumps(offset.to_json())
    assert Offset.from_json(json.loads(text)) == offset
    assert "site:" not in text
    turned = Offset(dict(reversed(offset.streams.items())), False, offset.begin, offset.division)
    assert json.dumps(turned.to_json()) == text
    assert "site:" in json.dumps(Offset(many(PLAIN_MAX)).to_json())


def test_an_offset_of_20_000_streams_takes_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = len(json.dumps(Offset(many(20_000)).to_json()))
    monkeypatch.setattr(positions, "PLAIN_MAX", 20_000)
    assert packed * 20 < len(json.dumps(Offset(many(20_000)).to_json()))


# What millstream 0.1 wrote: the end of a first batch.
RECORDED = (
    '{"streams": {"a": {"id": "1795385100160-0", "added": 11, "incarnation": 1838474309823488},'
    ' "\\udcff": {"id": "5-7", "added": null, "incarnation": 2}}, "from": {"a": {"id": "0-0",'
    ' "added": 0, "incarnation": 1838474309823488}}, "divided": [2, 70]}'
)


def test_an_offset_of_an_older_millstream_is_written_unchanged() -> None:
    offset = Offset.from_json(json.loads(RECORDED))
    assert offset == Offset(
        {
            b"a": Position((1_795_385_100_160, 0), 11, 1_838_474_309_823_488),
            b"\xff": Position((5, 7), None, 2),
        },
        begin={b"a": Position((0, 0), 0, 1_838_474_309_823_488)},
        division=Division(2, 70),
    )
    assert json.dumps(offset.to_json()) == RECORDED


# What this millstream writes: the packed form, version 1.
RECORDED_PACKED = (
    '{"streams": [1, 3, "eJxjYMAG2LGKMnAwMhan5hXnF1kZGv0HABgHBEg=",'
    ' "eJxjYGBcxOrV3sCACrihNDsDw38w+sfAEMvA8IuBYSsDQwUDYz1MHBWxYhMEoS/YxRl/LAAAagogiA=="]}'
)


def test_a_packed_offset_that_was_recorded_is_read() -> None:
    assert Offset.from_json(json.loads(RECORDED_PACKED)).streams == {
        b"sensor:1": Position((1_795_385_100_160, 0), 11, 7),
        b"sensor:2": Position((1_795_385_100_161, 5), None, 8),
        b"\xff": Position((LARGEST, LARGEST), LARGEST, LARGEST),
    }


@pytest.mark.parametrize(
    "damaged",
    [
        [],
        [2, 0, "", ""],
        [1],
        [1, 1, "!", "!"],
        [1, 1, "AAAA", "AAAA"],
        [1, 2, *pack((b"a",), [(1, 0, 1, 1)])[2:]],
        [1, -1, *pack((b"a",), [(1, 0, 1, 1)])[2:]],
        [1, "1", *pack((b"a",), [(1, 0, 1, 1)])[2:]],
        [1, 1, pack((b"b",), [(1, 0, 1, 1)])[3], pack((b"a",), [(1, 0, 1, 1)])[3]],
    ],
)
def test_a_packed_offset_that_is_none_is_refused(damaged: list[object]) -> None:
    with pytest.raises(PackError, match=r"version|damaged"):
        unpack(damaged)
    with pytest.raises(PositionError, match="an offset of the checkpoint cannot be read: it"):
        Offset.from_json({"streams": damaged})


@given(IDS)
def test_before_is_the_next_smaller_id(id_: tuple[int, int]) -> None:
    smaller = before(id_)
    if smaller is None:
        assert id_ == (0, 0)
    else:
        ms, seq = smaller
        assert (ms + 1, 0) == id_ if seq == LARGEST else (ms, seq + 1) == id_


@given(
    st.integers(1, 1000),
    st.dictionaries(st.binary(max_size=3), st.tuples(st.integers(0, 500), IDS), max_size=8),
)
def test_a_limit_is_used_up_but_not_exceeded_and_shares_are_fair(
    limit: int, waiting: dict[bytes, tuple[int, tuple[int, int]]]
) -> None:
    shares = share(limit, waiting)
    assert sum(shares.values()) == min(limit, sum(count for count, _ in waiting.values()))
    for key, mine in shares.items():
        count = waiting[key][0]
        assert 0 <= mine <= count
        if mine < count:
            assert all(other <= mine + 1 for other in shares.values())


def test_streams_with_the_largest_lag_come_first_under_a_limit() -> None:
    waiting = {b"new": (9, (300, 0)), b"old": (9, (100, 0)), b"middle": (9, (200, 0))}
    assert share(1, waiting) == {b"new": 0, b"old": 1, b"middle": 0}
    assert share(8, waiting) == {b"new": 2, b"old": 3, b"middle": 3}


def test_named_offsets_take_ids_words_and_checkpoint_offsets() -> None:
    text = '{"a": "5-1", "b": "latest", "c": {"id": "7-0", "added": 3, "incarnation": 1}, "d": "9"}'
    assert named_positions(text) == {b"a": (5, 1), b"b": "latest", b"c": (7, 0), b"d": (9, 0)}
    assert named_positions('{"streams": "5-1"}') == {b"streams": (5, 1)}
    assert named_positions('{"streams": {"id": "5-1"}}') == {b"streams": (5, 1)}


def test_named_offsets_take_a_whole_offset_of_a_checkpoint() -> None:
    assert named_positions(RECORDED) == {b"a": (1_795_385_100_160, 0), b"\xff": (5, 7)}
    text = json.dumps(Offset(many(PLAIN_MAX + 1)).to_json())
    assert named_positions(text) == {key: at.id for key, at in many(PLAIN_MAX + 1).items()}


@pytest.mark.parametrize("text", ["5-0", "[]", '{"a": 5}', '{"a": "x"}', '{"a": {}}', '"earliest"'])
def test_named_offsets_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(PositionError, match="not a JSON object of keys and ids"):
        named_positions(text)


@pytest.mark.parametrize("text", ["newest", '{"a": "x"}'])
def test_a_wrong_starting_offset_names_the_option(text: str) -> None:
    with pytest.raises(OptionError, match="startingOffsets"):
        Bound(SourceOptions({"startingOffsets": text}, STREAM), "starting", "latest")


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1700000000000", 1_700_000_000_000),
        ("2026-11-01", 1_793_491_200_000),
        ("2026-11-01T01:00:00+01:00", 1_793_491_200_000),
        ("2026-11-01T00:00:00.250Z", 1_793_491_200_250),
    ],
)
def test_a_starting_timestamp_is_a_number_or_a_time(text: str, ms: int) -> None:
    bound = Bound(SourceOptions({"startingTimestamp": text}, LIVE), "starting", "earliest")
    assert bound.time == (ms - 1, LARGEST)


def test_exactly_one_way_to_select_streams_is_required() -> None:
    for given_options in ({}, {"subscribe": "a", "subscribePattern": "b*"}, {"subscribe": " , "}):
        with pytest.raises(OptionError, match="subscribe"):
            StreamChoice(SourceOptions(given_options, LIVE))
    assert StreamChoice(SourceOptions({"subscribe": "b, a"}, LIVE)).keys == [b"b", b"a"]


def test_a_loss_names_its_number_its_stream_and_its_start() -> None:
    with pytest.raises(DataLossError, match=r"4000 entries of 'sensor:7' after 5-0 were evicted"):
        Losses(True).evicted(b"sensor:7", (5, 0), 4000, is_exact=True)
    with pytest.raises(DataLossError, match=r"up to 1 entries of"):
        Losses(True).evicted(b"sensor:7", (5, 0), 1, is_exact=False)


def test_a_loss_that_is_allowed_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    Losses(False).deleted(b"sensor:7", (5, 0))
    assert "the stream 'sensor:7' was deleted" in caplog.text


def test_an_address_is_shown_without_its_password_and_travels() -> None:
    options = SourceOptions({"server": "rediss://me:secret@host:7000/3?ssl_ca_certs=x"}, LIVE)
    address = Address.from_options(options)
    assert str(address) == "rediss://host:7000/3"
    assert pickle.loads(pickle.dumps(address)) == address


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:se/cret@host:7000",
        "redis://me:se#cret@host",
        "redis://me:12/cret@host",
        "redis://me:12?cret@host",
        "redis://host:secret",
    ],
)
def test_a_url_broken_by_its_password_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(OptionError, match="option 'password'") as failure:
        Address.from_options(SourceOptions({"server": url}, LIVE))
    assert "cret" not in "".join(traceback.format_exception(failure.value))


def test_an_address_that_is_no_url_is_refused() -> None:
    with pytest.raises(OptionError, match="redis://localhost:6455"):
        Address.from_options(SourceOptions({"server": "localhost:6455"}, LIVE))
