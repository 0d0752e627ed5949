"""Which commands refresh a group's time to live.

The groups are made at one moment and refreshed later, all at once. The moment each is first seen
gone may be late on a busy machine, but never earlier than its ttl after the last refresh.
"""

from __future__ import annotations

import time

import pytest
from tests.support.client import RawClient, as_bytes, as_list
from tests.support.resp import Error
from tests.support.waiting import wait_until

TTL_MS = 1200
WAIT_BEFORE_REFRESH_MS = 500
TIMER_TOLERANCE_MS = 5

REFRESHING: dict[str, list[str]] = {
    "TREAD": ["TREAD", "s", "", "10", "GROUP", "{group}", str(TTL_MS)],
    "TREAD with count 0": ["TREAD", "s", "", "0", "GROUP", "{group}", str(TTL_MS)],
    "TACK": ["TACK", "s", "{group}", "1.1"],
    "XREADGROUP": ["XREADGROUP", "GROUP", "{group}", "alice", "STREAMS", "s", ">"],
    "XREADGROUP of the history": ["XREADGROUP", "GROUP", "{group}", "alice", "STREAMS", "s", "0"],
    "XACK": ["XACK", "s", "{group}", "1-1"],
    "XCLAIM": ["XCLAIM", "s", "{group}", "alice", "0", "1-1"],
    "XAUTOCLAIM": ["XAUTOCLAIM", "s", "{group}", "alice", "0", "0"],
    "XPENDING": ["XPENDING", "s", "{group}"],
    "XPENDING with a range": ["XPENDING", "s", "{group}", "-", "+", "10"],
    "XGROUP SETID": ["XGROUP", "SETID", "s", "{group}", "0"],
    "XGROUP CREATECONSUMER": ["XGROUP", "CREATECONSUMER", "s", "{group}", "alice"],
    "XGROUP DELCONSUMER": ["XGROUP", "DELCONSUMER", "s", "{group}", "alice"],
}
NOT_REFRESHING: dict[str, list[str]] = {
    "XINFO GROUPS": ["XINFO", "GROUPS", "s"],
    "XINFO CONSUMERS": ["XINFO", "CONSUMERS", "s", "{group}"],
    "a plain TREAD": ["TREAD", "s", "0", "10"],
    "TAPPEND": ["TAPPEND", "s", "f", "v"],
    "TACK of another group": ["TACK", "s", "other", "1.1"],
}


def living_groups(client: RawClient) -> set[str]:
    names = [as_list(group)[1] for group in as_list(client.call("XINFO", "GROUPS", "s"))]
    return {as_bytes(name).decode() for name in names}


@pytest.fixture
def lifetimes_ms(client: RawClient) -> dict[str, tuple[float, float]]:
    """For each command: at least how long after its refresh, and at most how long after its
    making, the group was first seen gone."""
    commands = {**REFRESHING, **NOT_REFRESHING}
    client.call("XADD", "s", "1-1", "f", "v")
    made_before = time.monotonic()
    for name in commands:
        read = ["TREAD", "s", "0", "10", "GROUP", name, str(TTL_MS), "RETRY", "1000000", "0"]
        assert client.call(*read) == [[b"1.1", b"f", b"v"]]
    end = made_before + WAIT_BEFORE_REFRESH_MS / 1000
    wait_until(lambda: time.monotonic() >= end)
    refreshed_before = time.monotonic()
    for name, words in commands.items():
        reply = client.call(*[word.format(group=name) for word in words])
        assert not isinstance(reply, Error), (name, reply)
    gone: dict[str, float] = {}

    def look() -> set[str]:
        alive = living_groups(client)
        for name in commands.keys() - alive - gone.keys():
            gone[name] = time.monotonic()
        return alive

    wait_until(look, lambda alive: not alive, "the end of all groups")
    return {
        name: ((at - refreshed_before) * 1000, (at - made_before) * 1000)
        for name, at in gone.items()
    }


def test_every_command_on_a_group_refreshes_its_ttl(
    lifetimes_ms: dict[str, tuple[float, float]],
) -> None:
    early = {
        name: round(lifetimes_ms[name][0])
        for name in REFRESHING
        if lifetimes_ms[name][0] < TTL_MS - TIMER_TOLERANCE_MS
    }
    assert not early, f"gone sooner than {TTL_MS} ms after the command, in ms: {early}"


def test_looking_at_a_group_does_not_refresh_its_ttl(
    lifetimes_ms: dict[str, tuple[float, float]],
) -> None:
    # Not a bound on time but on order: these groups go before those that were refreshed.
    first_refreshed = min(lifetimes_ms[name][1] for name in REFRESHING)
    late = {n for n in NOT_REFRESHING if lifetimes_ms[n][1] >= first_refreshed}
    assert not late, f"gone no sooner than the refreshed ones: {late}"
