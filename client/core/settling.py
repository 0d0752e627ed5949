"""The results of jobs that the server has not confirmed yet.

Every result is sent until it is answered: repeating an XACK or a TNACK changes nothing. One request
has the results of all jobs that ended while the request before it was on its way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from millstream.client.core import job_requests
from millstream.client.core.job_requests import DONE, Held, Result
from millstream.client.core.steps import Command
from millstream.client.core.words import Key
from millstream.client.jobs import Delivery

Place = tuple[Key, str | bytes]
"""A key and an ID: one entry."""
COPIED, DEAD, NOT_HELD = 2, 3, -1
"""Codes of TNACK and TEXTEND."""


def place(delivery: Delivery) -> Place:
    return delivery.key, delivery.word


class Settlement:
    """One request: results, and deliveries that are to be extended, with the milliseconds."""

    def __init__(
        self, results: dict[Place, Result], extended: Sequence[tuple[Delivery, int]]
    ) -> None:
        self.results = results
        self.extended = extended
        self._parts: list[tuple[Result | None, list[Any]]] = []

    def commands(self, held: dict[Key, Held]) -> list[Command[Any]]:
        """In the order in which `codes` expects the replies."""
        found = []
        together: dict[tuple[Key, Result], list[str | bytes]] = {}
        for (key, word), result in self.results.items():
            together.setdefault((key, result), []).append(word)
        for (key, result), words in together.items():
            self._parts.append((result, words))
            found.append(job_requests.settle(held[key], result, words))
        alike: dict[tuple[Key, int], list[Delivery]] = {}
        for delivery, for_ms in self.extended:
            alike.setdefault((delivery.key, for_ms), []).append(delivery)
        for (key, for_ms), deliveries in alike.items():
            self._parts.append((None, deliveries))
            words = [delivery.word for delivery in deliveries]
            found.append(job_requests.extend(held[key], for_ms, words))
        return found

    def dead(self, replies: Sequence[Any]) -> int:
        """The number of results that were the end of their entries without an XACK."""
        codes = [
            code
            for (result, _), reply in zip(self._parts, replies, strict=True)
            if result not in (None, DONE) and isinstance(reply, list)
            for code in reply
        ]
        return sum(code in (COPIED, DEAD) for code in codes)

    def lost(self, replies: Sequence[Any]) -> list[Delivery]:
        """The deliveries that could not be extended."""
        return [
            delivery
            for (result, deliveries), reply in zip(self._parts, replies, strict=True)
            if result is None and isinstance(reply, list)
            for delivery, code in zip(deliveries, reply, strict=True)
            if code == NOT_HELD
        ]


class Settling:
    """Results to be sent, and those on their way."""

    def __init__(self) -> None:
        self._waiting: dict[Place, Result] = {}
        self._sent: Settlement | None = None

    @property
    def is_done(self) -> bool:
        return not self._waiting and self._sent is None

    @property
    def on_its_way(self) -> bool:
        return self._sent is not None

    def add(self, at: Place, result: Result) -> None:
        self._waiting[at] = result

    def take(self, extended: Sequence[tuple[Delivery, int]]) -> Settlement | None:
        """The next request, while none is on its way; None if there is nothing to send."""
        if not (self._waiting or extended):
            return None
        self._sent = Settlement(self._waiting, extended)
        self._waiting = {}
        return self._sent

    def is_delivered_again(self, at: Place) -> bool:
        """An entry arrives, whose earlier delivery may have a result that the server does not know.
        False if that is its acknowledgement: the job is done."""
        if self._waiting.get(at) == DONE:
            return False
        self._waiting.pop(at, None)  # the server has counted the failure: the delivery has ended
        return self._sent is None or self._sent.results.get(at) != DONE

    def answered(self) -> None:
        self._sent = None

    def failed(self, held_again: Iterable[Place]) -> None:
        """The reply was lost, or the server could not act: the results are sent again, except those
        of entries that this worker holds again."""
        if self._sent is not None:
            again = set(held_again)
            left = {at: result for at, result in self._sent.results.items() if at not in again}
            self._waiting = left | self._waiting
            self._sent = None
