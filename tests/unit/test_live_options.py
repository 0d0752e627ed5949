"""Options of live reading that follow Spark's Kafka source: valid and invalid values."""

from __future__ import annotations

import pytest

from millstream.pipeline.positions import LARGEST
from millstream.pipeline.source_options import LIVE, STREAM, OptionError, SourceOptions
from millstream.pipeline.start_offsets import Bound
from millstream.pipeline.trigger_limit import TriggerDelay


def patience(clock_s: list[float], **options: str) -> TriggerDelay:
    return TriggerDelay(SourceOptions(options, STREAM), lambda: clock_s[0])


def test_only_triggers_after_the_first_wait_for_enough_entries() -> None:
    clock_s = [1000.0]
    waiting = patience(clock_s, minOffsetsPerTrigger="10", maxTriggerDelay="1m")
    assert not waiting.waits(1)
    assert waiting.waits(9)
    assert not waiting.waits(10)


def test_a_trigger_waits_no_longer_than_its_delay_since_the_last() -> None:
    clock_s = [1000.0]
    waiting = patience(clock_s, minOffsetsPerTrigger="10", maxTriggerDelay="1m")
    assert not waiting.waits(10)
    clock_s[0] += 59.9
    assert waiting.waits(9)
    clock_s[0] += 0.1
    assert not waiting.waits(1)
    assert waiting.waits(1)
    default = patience(clock_s, minOffsetsPerTrigger="10")
    assert not default.waits(10)
    clock_s[0] += 15 * 60 - 1
    assert default.waits(9)
    clock_s[0] += 1
    assert not default.waits(9)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500", 500),
        ("500ms", 500),
        ("2500us", 2),
        ("30s", 30_000),
        ("15m", 900_000),
        ("15 min", 900_000),
        ("2H", 7_200_000),
        (" 1d ", 86_400_000),
        ("0s", 0),
    ],
)
def test_a_duration_has_a_unit_or_is_milliseconds(text: str, ms: int) -> None:
    assert SourceOptions({"maxTriggerDelay": text}, STREAM).duration_ms("maxTriggerDelay", 1) == ms
    assert SourceOptions({}, STREAM).duration_ms("maxTriggerDelay", 1) == 1


@pytest.mark.parametrize("text", ["", "x", "-1s", "1.5s", "5 weeks", "1s 2m", "s", "9" * 16 + "s"])
def test_a_duration_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"'maxTriggerDelay' is .* such as 500ms, 30s"):
        patience([0.0], minOffsetsPerTrigger="1", maxTriggerDelay=text)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"minOffsetsPerTrigger": "0"}, "'minOffsetsPerTrigger' is '0'; it must be a whole number"),
        ({"minOffsetsPerTrigger": "many"}, "'minOffsetsPerTrigger' is 'many'"),
        ({"maxOffsetsPerTrigger": "0"}, "'maxOffsetsPerTrigger' is '0'; it must be"),
        ({"maxTriggerDelay": "5s"}, "'maxTriggerDelay' needs the option 'minOffsetsPerTrigger'"),
        (
            {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "'minOffsetsPerTrigger' is 5, which is more than 'maxOffsetsPerTrigger', 4",
        ),
        (
            {"minEntriesPerTrigger": "5", "maxEntriesPerTrigger": "4"},
            "'minEntriesPerTrigger' is 5, which is more than 'maxEntriesPerTrigger', 4",
        ),
        (
            {"maxEntriesPerTrigger": "5", "maxoffsetspertrigger": "5"},
            "'maxEntriesPerTrigger' and 'maxOffsetsPerTrigger' are the same option: give only one",
        ),
        ({"minOffsetPerTrigger": "5"}, "did you mean 'minOffsetsPerTrigger'"),
    ],
)
def test_limits_of_a_trigger_that_cannot_be_are_refused(
    options: dict[str, str], wanted: str
) -> None:
    with pytest.raises(OptionError, match=wanted):
        patience([0.0], **options)


def test_limits_of_a_trigger_belong_to_streaming() -> None:
    for name in ("minOffsetsPerTrigger", "maxOffsetsPerTrigger", "maxTriggerDelay"):
        with pytest.raises(OptionError, match="does not belong to reading a server"):
            SourceOptions({name: "5"}, LIVE)


def test_offsets_by_timestamp_are_numbers_or_times() -> None:
    text = '{"a": 1700000000000, "b": "2026-11-01T00:00:00.000250Z", "\\udcff": "7"}'
    given = {"startingOffsetsByTimestamp": text, "endingOffsetsByTimestamp": text}
    starting = Bound(SourceOptions(given, LIVE), "starting", "latest")
    assert starting.times == {
        b"a": (1_699_999_999_999, LARGEST),
        b"b": (1_793_491_200_000, LARGEST),
        b"\xff": (6, LARGEST),
    }
    ending = Bound(SourceOptions(given, LIVE), "ending", "latest")
    assert ending.times == {
        b"a": (1_700_000_000_000, LARGEST),
        b"b": (1_793_491_200_000, LARGEST),
        b"\xff": (7, LARGEST),
    }


@pytest.mark.parametrize(
    "text",
    [
        "5",
        "[]",
        "latest",
        '{"a": 1.5}',
        '{"a": true}',
        '{"a": null}',
        '{"a": -1}',
        '{"a": "soon"}',
        '{"a": "5-0"}',
        '{"a": 18446744073709551616}',
        '{"a": {"0": 1700000000000}}',
    ],
)
def test_offsets_by_timestamp_that_are_none_are_refused(text: str) -> None:
    for name in ("starting", "ending"):
        option = f"{name}OffsetsByTimestamp"
        with pytest.raises(OptionError, match=rf"'{option}' is .*; it must be times as JSON"):
            Bound(SourceOptions({option: text}, LIVE), name, "latest")


def test_a_stream_is_named_by_offset_or_by_time() -> None:
    given = {"startingOffsets": '{"a": "5-0"}', "startingOffsetsByTimestamp": '{"a": 5}'}
    with pytest.raises(OptionError, match="both name the stream 'a'"):
        Bound(SourceOptions(given, STREAM), "starting", "latest")
