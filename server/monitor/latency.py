"""Latency monitoring: spikes of each kind of event by second, for LATENCY.

An event is recorded only from latency-monitor-threshold on, so a healthy server records nothing. Of
the events in one second only the maximum is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

SAMPLES = 160


class Series:
    """The samples of one event, oldest first, as [second, milliseconds]."""

    def __init__(self) -> None:
        self.max_ms = 0
        self.samples: deque[list[int]] = deque(maxlen=SAMPLES)


class LatencyMonitor:
    """Series by event. `threshold_ms` 0 records nothing. `counts` returns, for each command, the
    number of calls that took up to 1, 2, 4 ... microseconds, or nothing."""

    def __init__(
        self, threshold_ms: int = 0, counts: Callable[[], dict[str, list[int]]] = dict
    ) -> None:
        self.threshold_ms = threshold_ms
        self.counts = counts
        self.series: dict[str, Series] = {}

    def note(self, event: str, now_ms: int, milliseconds: int) -> None:
        """Record that an event took this long."""
        if not self.threshold_ms or milliseconds < self.threshold_ms:
            return
        series = self.series.setdefault(event, Series())
        series.max_ms = max(series.max_ms, milliseconds)
        second = now_ms // 1000
        if series.samples and series.samples[-1][0] == second:
            series.samples[-1][1] = max(series.samples[-1][1], milliseconds)
        else:
            series.samples.append([second, milliseconds])

    def history(self, event: str) -> list[list[int]]:
        """[second, milliseconds] of an event's samples, oldest first."""
        series = self.series.get(event)
        return [list(sample) for sample in series.samples] if series else []

    def latest(self) -> list[tuple[str, int, int, int]]:
        """(event, last second, last milliseconds, greatest ever) of every event."""
        return [
            (event, *series.samples[-1], series.max_ms)  # type: ignore[misc]
            for event, series in self.series.items()
        ]

    def reset(self, events: list[str]) -> int:
        """Remove these events, or all when none is named; return their number."""
        named = [event for event in (events or list(self.series)) if event in self.series]
        for event in dict.fromkeys(named):
            del self.series[event]
        return len(set(named))
