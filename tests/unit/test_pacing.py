"""Which requests of a link are done at once, and which at the end of a period."""

from __future__ import annotations

from collections.abc import Callable

from millstream.server.replication.pacing import FEW, Pace


class Loop:
    """Runs callbacks by hand: those of a turn, and the timer at the end of the period."""

    def __init__(self) -> None:
        self.ready: list[Callable[..., object]] = []
        self.timers: list[Callable[..., object]] = []

    def call_soon(self, callback: Callable[..., object], /, *args: object) -> None:
        self.ready.append(callback)

    def call_later(self, delay_s: float, callback: Callable[..., object], /) -> None:
        self.timers.append(callback)

    def turn(self) -> None:
        ready, self.ready = self.ready, []
        for callback in ready:
            callback()

    def end_period(self) -> None:
        (timer,) = self.timers
        self.timers = []
        timer()


class Paced:
    def __init__(self) -> None:
        self.loop = Loop()
        self.calls = 0
        self.pace = Pace(self.loop, self._act)

    def _act(self) -> None:
        self.calls += 1

    def ask(self, times: int, *, without_rest: bool = False) -> int:
        """Ask `times` times, in a turn each; return the number of calls."""
        before = self.calls
        for _ in range(times):
            self.pace.soon(without_rest=without_rest)
            self.loop.turn()
        return self.calls - before

    def end_period(self) -> int:
        before = self.calls
        self.loop.end_period()
        return self.calls - before


def test_a_client_that_waits_for_each_reply_is_never_delayed() -> None:
    paced = Paced()
    assert paced.ask(1 + FEW) == 1 + FEW
    assert paced.end_period() == 0
    assert paced.loop.timers == []
    assert paced.ask(1 + FEW) == 1 + FEW


def test_requests_of_one_turn_are_one_call() -> None:
    paced = Paced()
    for _ in range(3):
        paced.pace.soon()
    paced.loop.turn()
    assert paced.calls == 1


def test_under_load_there_is_one_call_in_a_period() -> None:
    paced = Paced()
    assert paced.ask(10 * FEW) == 1 + FEW
    assert paced.end_period() == 1
    for _ in range(3):
        assert paced.ask(10 * FEW) == 0
        assert paced.end_period() == 1


def test_when_the_load_ends_requests_are_not_delayed_any_more() -> None:
    paced = Paced()
    paced.ask(10 * FEW)
    paced.end_period()
    assert paced.ask(1) == 0
    assert paced.end_period() == 1
    assert paced.ask(FEW) == FEW
    assert paced.end_period() == 0


def test_without_rest_nothing_waits() -> None:
    paced = Paced()
    assert paced.ask(10 * FEW, without_rest=True) == 10 * FEW


def test_a_call_that_the_end_of_the_period_has_made_is_not_made_again() -> None:
    paced = Paced()
    paced.ask(1)
    paced.pace.soon()
    assert paced.end_period() == 1
    paced.loop.turn()
    assert paced.calls == 2
