"""Pacing of a link: requests that run at once, and those at the end of a period."""

from __future__ import annotations

from collections.abc import Callable

from millstream.server.durability.workers import Machine
from millstream.server.replication.pacing import FEW, Pace


class Loop:
    """Runs callbacks by hand, those of a turn and the timer, and is the clock."""

    def __init__(self) -> None:
        self.ready: list[Callable[..., object]] = []
        self.timers: list[Callable[..., object]] = []
        self.now_ms = 5

    def call_soon(self, callback: Callable[..., object], /, *args: object) -> None:
        self.ready.append(callback)

    def call_later(self, delay_s: float, callback: Callable[..., object], /) -> None:
        self.timers.append(callback)

    def turn(self) -> None:
        ready, self.ready = self.ready, []
        for callback in ready:
            callback()

    def pass_ms(self, count: int = 1) -> None:
        self.now_ms += count
        timers, self.timers = self.timers, []
        for timer in timers:
            timer()


class Paced:
    def __init__(self) -> None:
        self.loop = Loop()
        self.calls = 0
        self.pace = Pace(Machine(None, None, lambda: self.loop.now_ms, self.loop), self._act)

    def _act(self) -> None:
        self.calls += 1

    def ask(self, times: int, *, without_rest: bool = False) -> int:
        """Ask `times` times, in a turn each; return the number of calls."""
        before = self.calls
        for _ in range(times):
            self.pace.soon(without_rest=without_rest)
            self.loop.turn()
        return self.calls - before

    def pass_ms(self, count: int = 1) -> int:
        before = self.calls
        self.loop.pass_ms(count)
        return self.calls - before


def test_a_client_that_waits_for_each_reply_is_never_delayed() -> None:
    paced = Paced()
    for _ in range(3):
        assert paced.ask(FEW) == FEW
        assert paced.loop.timers == []
        assert paced.pass_ms() == 0


def test_requests_of_one_turn_are_one_call() -> None:
    paced = Paced()
    for _ in range(3):
        paced.pace.soon()
    paced.loop.turn()
    assert paced.calls == 1


def test_under_load_there_is_one_call_in_a_millisecond() -> None:
    paced = Paced()
    assert paced.ask(10 * FEW) == FEW
    assert paced.pass_ms() == 1
    for _ in range(3):
        assert paced.ask(10 * FEW) == 0
        assert paced.pass_ms() == 1


def test_when_the_load_ends_requests_are_not_delayed_any_more() -> None:
    paced = Paced()
    paced.ask(10 * FEW)
    paced.pass_ms()
    assert paced.ask(1) == 0
    assert paced.pass_ms() == 1
    assert paced.ask(FEW) == FEW
    assert paced.pass_ms() == 0


def test_after_a_pause_requests_are_not_delayed() -> None:
    paced = Paced()
    paced.ask(10 * FEW)
    paced.pass_ms(2)
    assert paced.ask(FEW) == FEW


def test_all_calls_run_at_once_without_rest() -> None:
    paced = Paced()
    assert paced.ask(10 * FEW, without_rest=True) == 10 * FEW


def test_a_call_made_by_the_timer_is_not_repeated() -> None:
    paced = Paced()
    paced.ask(1 + FEW)
    assert paced.loop.timers
    paced.loop.now_ms += 2
    paced.pace.soon()  # it waits already
    assert paced.pass_ms() == 1
    paced.loop.turn()
    assert paced.pass_ms() == 0


def test_a_check_at_the_end_of_a_turn_saves_the_next_one() -> None:
    paced = Paced()
    for calls in range(1, 1 + FEW):
        paced.pace.soon_in_turn()
        assert paced.calls == calls - 1
        paced.pace.look()
        assert paced.calls == calls
    assert paced.loop.ready == []
    paced.pace.look()
    assert paced.calls == FEW


def test_a_check_ignores_work_that_waits_for_the_timer() -> None:
    paced = Paced()
    paced.ask(FEW)
    paced.pace.soon_in_turn()
    paced.pace.look()
    assert paced.calls == FEW
    assert paced.pass_ms() == 1
    paced.pace.look()
    assert paced.calls == 1 + FEW


def test_what_is_not_urgent_waits_for_the_timer() -> None:
    paced = Paced()
    for _ in range(3):
        paced.pace.later()
    assert paced.ask(1) == 0  # it waits already
    assert paced.pass_ms() == 1
    assert paced.loop.timers == []
    assert paced.ask(1) == 1
