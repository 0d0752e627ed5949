"""Commands that refresh a group's time to live.

The groups, one a command, are made at one moment and refreshed later, all at once. The moment each
is first seen gone may be late on a busy machine, but never earlier than its ttl after the last
refresh.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest
from tests.support.client import RawClient, as_bytes, as_list
from tests.support.resp import Error
from tests.support.waiting import wait_until

TTL_MS = 2000
WAIT_BEFORE_REFRESH_MS = 800
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
COMMANDS = {**REFRESHING, **NOT_REFRESHING}
NAMES = list(REFRESHING)


@dataclass
class Lifetime:
    """At most how long after its making, and at least how long after its command, a group was
    first seen gone."""

    since_made_ms: float
    since_command_ms: float


def living_groups(client: RawClient) -> set[str]:
    names = [as_list(group)[1] for group in as_list(client.call("XINFO", "GROUPS", "s"))]
    return {as_bytes(name).decode() for name in names}


def measure(client: RawClient) -> dict[str, Lifetime]:
    """The life of one group for each command."""
    client.call("XADD", "s", "1-1", "f", "v")
    made_before = time.monotonic()
    for name in COMMANDS:
        read = ["TREAD", "s", "0", "10", "GROUP", name, str(TTL_MS), "RETRY", "1000000", "0"]
        assert client.call(*read) == [[b"1.1", b"f", b"v"]]
    end = made_before + WAIT_BEFORE_REFRESH_MS / 1000
    wait_until(lambda: time.monotonic() >= end)
    refreshed_before = time.monotonic()
    for name, words in COMMANDS.items():
        reply = client.call(*[word.format(group=name) for word in words])
        assert not isinstance(reply, Error), (name, reply)
    gone: dict[str, float] = {}

    def look() -> set[str]:
        alive = living_groups(client)
        for name in COMMANDS.keys() - alive - gone.keys():
            gone[name] = time.monotonic()
        return alive

    wait_until(look, lambda alive: not alive, "the end of all groups")
    return {
        name: Lifetime((at - made_before) * 1000, (at - refreshed_before) * 1000)
        for name, at in gone.items()
    }


@pytest.fixture(scope="module")
def measured() -> dict[str, Lifetime]:
    """All lifetimes, measured at once by the first test that wants one."""
    return {}


@pytest.fixture
def lifetimes(client: RawClient, measured: dict[str, Lifetime]) -> dict[str, Lifetime]:
    if not measured:
        measured |= measure(client)
    return measured


@pytest.mark.parametrize("name", NAMES)
def test_the_command_refreshes_the_ttl_of_its_group(
    lifetimes: dict[str, Lifetime], name: str
) -> None:
    assert lifetimes[name].since_command_ms >= TTL_MS - TIMER_TOLERANCE_MS


@pytest.mark.parametrize("name", NOT_REFRESHING)
def test_the_command_leaves_the_ttl_alone(lifetimes: dict[str, Lifetime], name: str) -> None:
    # Not a bound on time but on order: these groups go before those that were refreshed.
    refreshed = [lifetimes[other] for other in REFRESHING if other in lifetimes]
    assert lifetimes[name].since_made_ms < min(life.since_made_ms for life in refreshed)
