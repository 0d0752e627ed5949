"""True if a slot fits what millstream has recorded: each way in which it may not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream.cdc.config import Source
from millstream.cdc.protocol.replication_stream import SystemId
from millstream.cdc.source.ownership import foreign_line
from millstream.cdc.source.slots import ReplicationSlot, refusal
from millstream.cdc.streams.source_state import SourceState

SOURCE = Source("shop", "eu", "", ())
SLOT = ReplicationSlot("millstream_shop_eu", "pgoutput", "shop", None, "reserved", 90, 10)
STATE = SourceState("millstream_shop_eu", "71", 2, 100, "made")
SYSTEM = SystemId("71", 2, 120)
ENDS = {1: 80, 2: 100}
"""Where the earlier timelines ended."""


def found(
    state: SourceState | None = STATE,
    slot: ReplicationSlot | None = SLOT,
    system: SystemId = SYSTEM,
) -> str | None:
    return refusal(SOURCE, state, slot, system, lambda timeline, current: ENDS.get(timeline))


def test_a_slot_that_fits_is_read() -> None:
    assert found() is None
    assert found(slot=replace(SLOT, confirmed_lsn=100, active_pid=7)) is None
    assert found(None, None) is None


OWNED = replace(STATE, owner="0123456789abcdef")


@pytest.mark.parametrize(
    ("state", "slot", "comment", "text"),
    [
        (None, None, None, None),
        (None, None, "", None),
        (None, None, "by hand", None),
        (STATE, SLOT, "", None),
        (OWNED, SLOT, "", None),
        (OWNED, SLOT, "millstream cdc 0123456789abcdef, source shop:eu", None),
        (None, SLOT, "", "no record of it: another millstream cdc may use it; give"),
        (None, replace(SLOT, active_pid=7), None, "may use it (active for PID 7); give"),
        (None, None, "millstream cdc 0123456789abcdef", "no record of this ID"),
        (STATE, SLOT, "millstream cdc 0123456789abcdef", "no record of this ID"),
        (OWNED, SLOT, "millstream cdc ffffffffffffffff", "no record of this ID"),
        (replace(STATE, resync=True), SLOT, "millstream cdc ffffffffffffffff", "no record of this"),
        (replace(STATE, take_over=True), SLOT, "millstream cdc ffffffffffffffff", None),
    ],
)
def test_objects_of_another_pipeline_are_recognized(
    state: SourceState | None, slot: ReplicationSlot | None, comment: str | None, text: str | None
) -> None:
    line = foreign_line(SOURCE, state, slot, comment)
    assert (line is None) == (text is None)
    assert text is None or text in str(line)
    is_active = slot is not None and slot.active_pid is not None
    assert line is None or ("--take-over" in line) != is_active


def test_a_slot_that_is_or_will_be_created_is_not_compared() -> None:
    assert found(replace(STATE, phase="making"), None) is None
    assert found(replace(STATE, resync=True, system="72"), None) is None


def test_a_failover_that_lost_nothing_is_read() -> None:
    assert found(system=replace(SYSTEM, timeline=3)) is None


@pytest.mark.parametrize(
    ("text", "state", "slot", "system"),
    [
        ("the slot millstream_shop_eu no longer exists", STATE, None, SYSTEM),
        ("slot lost", STATE, replace(SLOT, wal_status="lost"), SYSTEM),
        ("has the plugin wal2json", STATE, replace(SLOT, plugin="wal2json"), SYSTEM),
        ("the source is another cluster", STATE, SLOT, replace(SYSTEM, system="72")),
        ("millstream is behind the slot", STATE, replace(SLOT, confirmed_lsn=101), SYSTEM),
        (
            "the source left timeline 1 at 0/50, before the durable LSN 0/64;",
            *(replace(STATE, timeline=1), SLOT, SYSTEM),
        ),
        (
            "the source is on timeline 2, which does not descend from timeline 9;",
            *(replace(STATE, timeline=9), SLOT, SYSTEM),
        ),
        ("before the durable LSN 0/64", STATE, SLOT, replace(SYSTEM, lsn=99)),
    ],
)
def test_a_mismatch_is_refused_with_the_command_that_helps(
    text: str, state: SourceState | None, slot: ReplicationSlot | None, system: SystemId
) -> None:
    line = found(state, slot, system)
    assert line is not None
    assert text in line
    assert line.endswith("millstream cdc resync shop:eu --all")
    assert "\n" not in line
