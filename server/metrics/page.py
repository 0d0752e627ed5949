"""The page of all metrics: built in steps between the clients' requests, at most once a second.

A step lasts at most a millisecond, so a scrape never delays a client for longer, whatever the
number of streams. Everyone who requests the page while it is built, or within a second after it,
gets the same page.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain

from millstream.server.durability.workers import Scheduler
from millstream.server.metrics.metric_table import FAMILIES
from millstream.server.metrics.server_series import Lines, Sources, server_lines
from millstream.server.metrics.stream_series import StreamSeries
from millstream.server.monitor.log import LOGGER

STEP_S = 0.0007  # a step may exceed it by the time of one yield
KEPT_S = 1.0
STEPS_AT_ONCE = 32


Page = list[bytes]
Receiver = Callable[[Page | None], object]


def build(sources: Sources, streams: StreamSeries, page: Page) -> Iterator[None]:
    """Fill `page` with parts of the text, in steps.

    Samples become bytes after a few steps, so that the memory of their strings is used again:
    otherwise providing fresh memory takes as long as building the page.
    """
    lines: Lines = {name: [] for name in FAMILIES}
    parts: dict[str, list[bytes]] = {name: [] for name in FAMILIES}
    steps = chain(server_lines(sources, lines), streams.lines(lines))
    for number, _ in enumerate(steps, start=1):
        if number % STEPS_AT_ONCE == 0:
            _encode(lines, parts)
        yield
    _encode(lines, parts)
    for name, samples in parts.items():
        if samples:
            _, kind, meaning = FAMILIES[name]
            page.append(f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n".encode())
            page += samples


def _encode(lines: Lines, parts: dict[str, list[bytes]]) -> None:
    for name, samples in lines.items():
        if samples:
            parts[name].append("".join(samples).encode())
            samples.clear()


class Pages:
    """Builds pages and keeps the last one for a second."""

    def __init__(
        self, sources: Sources, scheduler: Scheduler, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._sources = sources
        self._scheduler = scheduler
        self._clock = clock
        self._streams = StreamSeries(sources, clock)
        self._page: Page = []
        self._built_at = float("-inf")
        self._steps: Iterator[None] | None = None
        self._receivers: list[Receiver] = []
        self.step_s_max = 0.0  # the longest step so far

    def request(self, receiver: Receiver) -> None:
        """Call `receiver` with the page, now or when it is built; with None if that fails."""
        if self._steps is None and self._clock() - self._built_at < KEPT_S:
            receiver(self._page)
            return
        self._receivers.append(receiver)
        if self._steps is None:
            self._page = []
            self._steps = build(self._sources, self._streams, self._page)
            self._scheduler.call_soon(self._step)

    def _step(self) -> None:
        begun = self._clock()
        assert self._steps is not None
        try:
            for _ in self._steps:
                if self._clock() - begun >= STEP_S:
                    break
            else:
                self._built_at = self._clock()
                self._finish(self._page)
                return
        except Exception:
            LOGGER.exception("the page of metrics could not be built")
            self._finish(None)
            return
        self.step_s_max = max(self.step_s_max, self._clock() - begun)
        self._scheduler.call_soon(self._step)

    def _finish(self, page: Page | None) -> None:
        self._steps = None
        receivers, self._receivers = self._receivers, []
        for receiver in receivers:
            receiver(page)
