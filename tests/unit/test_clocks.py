"""The wall clock and the steady clock: read together, and times converted from one to the other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.effort import examples
from tests.support.in_process import NOW_MS, InProcessClient, InProcessServer
from tests.support.resp import Simple, encode_command

from millstream.server.execution.clocks import Clocks, SteadyClock, wall_clock_ms

NS = 1_000_000
HOUR_NS = 3_600_000 * NS
INTERRUPTION_NS = 70 * NS
IN_A_READING = (50, 300, 999_999)


class Machine:
    """Two clocks that show whole milliseconds of one time in nanoseconds."""

    def __init__(self, apart_ns: int) -> None:
        self.ns = NOW_MS * NS
        self.apart_ns = apart_ns  # the wall clock minus the steady clock
        self.look_ns = 0  # each reading takes this long
        self.interrupted = 0  # readings after which the process is interrupted

    def _look(self) -> None:
        self.ns += self.look_ns
        if self.interrupted:
            self.interrupted -= 1
            self.ns += INTERRUPTION_NS

    def wall_ms(self) -> int:
        wall_ms = (self.ns + self.apart_ns) // NS
        self._look()
        return wall_ms

    def steady_ms(self) -> int:
        steady_ms = self.ns // NS
        self._look()
        return steady_ms

    def clocks(self) -> Clocks:
        return Clocks(self.wall_ms, None, self.steady_ms)


class Server(InProcessServer):
    """A server whose clocks are those of a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        super().__init__()

    def now_ms(self) -> int:
        return self.machine.wall_ms()

    def steady_ms(self) -> int:
        return self.machine.steady_ms()


offsets_ns = st.one_of(st.integers(-HOUR_NS, 24 * HOUR_NS), st.integers(-3 * NS, 3 * NS))
spans_ns = st.lists(st.integers(0, 5 * NS), min_size=1, max_size=40)


@given(offsets_ns, spans_ns, st.sampled_from(IN_A_READING))
def test_the_difference_is_constant_until_a_clock_jumps(
    apart_ns: int, spans: list[int], look_ns: int
) -> None:
    machine = Machine(apart_ns)
    machine.look_ns = look_ns
    clocks = machine.clocks()
    clocks.now()
    ahead_ms = clocks.ahead_ms
    for span_ns in spans:
        machine.ns += span_ns
        clocks.now()
        assert clocks.ahead_ms == ahead_ms


@given(offsets_ns, offsets_ns)
def test_a_jump_changes_the_difference(first: int, second: int) -> None:
    machine = Machine(first)
    clocks = machine.clocks()
    clocks.now()
    machine.apart_ns = second
    clocks.now()
    assert abs(clocks.ahead_ms * NS - second) < 2 * NS


@pytest.mark.parametrize("interrupted", [1, 2, 5])
def test_an_interruption_between_two_readings_is_no_jump(interrupted: int) -> None:
    machine = Machine(0)
    clocks = machine.clocks()
    clocks.now()
    machine.interrupted = interrupted
    assert len(set(clocks.now())) == 1
    assert clocks.ahead_ms == 0


def test_the_machines_clocks_show_the_same_millisecond() -> None:
    clocks = Clocks(None, SteadyClock())
    apart = [wall_ms - steady_ms for wall_ms, steady_ms in (clocks.now() for _ in range(20_000))]
    assert apart.count(0) > 19_000  # the millisecond may end between the two readings
    assert clocks.ahead_ms == 0


def test_a_clock_that_continues_later_is_a_jump() -> None:
    steady = SteadyClock()
    clocks = Clocks(None, steady)
    clocks.now()
    steady.continue_from(wall_clock_ms() + 5000)
    clocks.now()
    assert abs(clocks.ahead_ms + 5000) <= 100


# ---------------------------------------------------------------- times in commands


def player_of(machine: Machine) -> InProcessClient:
    """A client of a server with a stream whose first entry is pending."""
    player = Server(machine).player()
    player.call("XADD s 1-0 n v")
    player.call("XGROUP CREATE s g 0")
    player.call("XREADGROUP GROUP g ann STREAMS s >")
    return player


def fields(pairs: Any) -> dict[bytes, Any]:
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


def delivered_ms(player: InProcessClient, key: str = "s") -> int:
    """The delivery time of the entry, which the group and its consumer show."""
    [group] = fields(player.call(f"XINFO STREAM {key} FULL"))[b"groups"]
    shown = fields(group)
    own = [row for made in shown[b"consumers"] for row in fields(made)[b"pending"]]
    assert shown[b"pending"][0][2] == own[0][1]
    return int(own[0][1])


@settings(max_examples=examples(60))
@given(
    apart_ns=offsets_ns,
    spans=st.tuples(*[st.integers(0, 3 * NS)] * 4),
    look_ns=st.sampled_from(IN_A_READING),
    age_ms=st.integers(0, 100_000),
)
def test_xclaim_time_stores_the_millisecond_that_was_sent(
    apart_ns: int, spans: tuple[int, ...], look_ns: int, age_ms: int
) -> None:
    machine = Machine(apart_ns)
    machine.look_ns = look_ns
    player = player_of(machine)
    machine.ns += spans[0]
    sent_ms = (machine.ns + apart_ns) // NS - age_ms
    player.call(f"XCLAIM s g bob 0 1-0 TIME {sent_ms} JUSTID")
    machine.ns += spans[1]
    assert delivered_ms(player) == sent_ms
    now_ms = (machine.ns + apart_ns) // NS
    [[_, _, idle_ms, _]] = player.call("XPENDING s g - + 1")  # type: ignore[misc]
    assert abs(idle_ms - (now_ms - sent_ms)) <= 1
    machine.ns += spans[2]
    payload = player_says(player, "DUMP", "s")
    machine.ns += spans[3]
    assert player_says(player, "RESTORE", "t", 0, payload) == Simple("OK")
    # A time after now becomes now: the clocks apart may round it to the millisecond after now.
    assert delivered_ms(player, "t") in (sent_ms, sent_ms - 1)
    assert delivered_ms(player, "t") != sent_ms or player_says(player, "DUMP", "t") == payload


def player_says(player: InProcessClient, *words: bytes | str | int) -> Any:
    player.in_process.executor.feed(player, encode_command(words))
    player.in_process.settle()
    return player.read()


@pytest.mark.parametrize("apart_ns", [0, 700_000, -HOUR_NS, HOUR_NS + 300_000])
def test_xclaim_reads_impossible_times_as_now(apart_ns: int) -> None:
    machine = Machine(apart_ns)
    player = player_of(machine)
    for sent in ("TIME -1", "TIME 9999999999999", "IDLE -5"):
        machine.ns += 5 * NS
        player.call(f"XCLAIM s g bob 0 1-0 {sent} JUSTID")
        assert abs(delivered_ms(player) - (machine.ns + apart_ns) // NS) <= 1
