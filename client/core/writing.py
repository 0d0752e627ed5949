"""Writing: appending exactly once, and facts with IDs that are reserved first.

A lost reply leaves open whether the server acted. Each request here is one that can be repeated:
the server recognizes an append by its number and a completion by its ID, and reservations that
this writer does not know are given up before others are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import Any

from redis.exceptions import RedisError, ResponseError

from millstream.client.core import argument_checks, requests
from millstream.client.core.argument_checks import number, whole
from millstream.client.core.batches import name_children
from millstream.client.core.repeating import Repeater, lost, sent
from millstream.client.core.row_sender import RowSender
from millstream.client.core.steps import Call, Clock, R, Steps
from millstream.client.core.words import Fields, Key, Value, check_value, field_words, text
from millstream.client.errors import (
    FactAlreadyDone,
    MillstreamError,
    NotReserved,
    ReservationLost,
    Sealed,
)
from millstream.client.ids import BEGINNING, ID
from millstream.client.log import log
from millstream.client.records import V

LEASE_MAX_S = 600.0
DURATION_S = 100
"""For how long a stream recognizes a repeated append, unless that was configured."""
FACTS_MAX = 10_000
"""At once: the limit of TRESERVE."""


class FactFields(MutableMapping[V, Value]):
    """The fields of a fact, and its ID."""

    def __init__(self, lease_ms: int) -> None:
        self._reserved: ID | None = None
        self._fields: dict[V, Value] = {}
        self._settled: bool | None = None
        """None while it is open; then True if it was completed."""
        self._lost = False
        """True if a heartbeat has found that the server no longer has the reservation."""
        self._lease_ms = lease_ms

    @property
    def _id(self) -> ID:
        if self._reserved is None:
            raise MillstreamError("the fact has no ID yet: await it, or enter it with `async with`")
        return self._reserved

    def __getitem__(self, field: V) -> Value:
        return self._fields[field]

    def __setitem__(self, field: V, value: Value) -> None:
        self._check_open()
        self._fields[field] = check_value(field, value)

    def __delitem__(self, field: V) -> None:
        self._check_open()
        del self._fields[field]

    def _check_open(self) -> None:
        if self._settled:  # an abandoned one raises an error when it is completed
            raise MillstreamError(f"the fact {self._reserved} is complete: its fields are fixed")

    def __iter__(self) -> Iterator[V]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return f"Fact({self._reserved} {self._fields!r})"


class WriterState:
    """The reservations of one writer, and the requests that it sends, one call after another."""

    def __init__(
        self,
        key: Key,
        name: Key,
        unique: str,
        lease_s: float,
        retry_for_s: float,
        now: Clock,
        client: Any,
    ) -> None:
        """`unique` is text that no other object has. `now` never goes back, in seconds."""
        if not 0 < number("retry_for", retry_for_s) < 100:
            raise ValueError(
                f"retry_for must be above 0 and below 100 seconds, not {retry_for_s!r}: the server "
                "recognizes a repeated append for 100 seconds"
            )
        self.lease_ms = lease_ms(lease_s)
        self._key = argument_checks.key("key", key)
        self._name = argument_checks.writer_name(name)
        self._producer = f"{text(self._name)[:64]}:{unique}"
        self._number = 0
        self._rows = RowSender(client, self._key, self._name, self._producer, retry_for_s, now)
        self._repeater = Repeater(retry_for_s, now)
        self._retry_for_s = retry_for_s
        self._duration_s: int | None = None
        """For how long the stream recognizes a repeated append; None if that is not known."""
        self._now = now
        self._open: dict[ID, FactFields[Any]] = {}
        self._orphans = False
        """True if reservations may exist that this object does not know."""
        self._taken_over = False
        self._renewed_s = float("-inf")
        self._counts = dict.fromkeys(("appended", "completed", "aborted", "lost"), 0)

    @property
    def pending(self) -> int:
        return len(self._open)

    def metrics(self) -> dict[str, float]:
        counts: dict[str, float] = {**self._counts, "pending": self.pending}
        counts["appended"] += self._rows.appended
        return {**counts, "repeats": self._repeater.repeats + self._rows.repeats}

    # ------------------------------------------------------------ requests

    def take_over(self) -> Steps[None]:
        """Give up what an earlier process left open, once."""
        if not self._taken_over:
            yield from self._repeater.call(requests.tabort(self._key, self._name, (), ()))
            self._taken_over = True

    def append(self, fields: Fields) -> Steps[ID]:
        words = field_words(fields)
        yield from self._check_duration()
        self._number += 1
        command = requests.append_once(self._key, self._producer, self._number, words)

        def attempt() -> Steps[ID]:
            return (yield from sent(command))

        steps = self._repeater.until_answered(attempt, self._recognizes)
        entry_id = yield from self._name_children(steps)
        self._counts["appended"] += 1
        return entry_id

    def append_many(self, rows: Iterable[Fields], seq: int | None, batch: int) -> Steps[int]:
        return self._rows.append_many(rows, seq, batch)

    def last_seq(self) -> Steps[int | None]:
        return self._repeater.call(requests.tinfo_producer(self._key, self._name))

    def _check_duration(self) -> Steps[None]:
        """Check `retry_for` against the stream, once it exists."""
        if self._duration_s is not None:
            return
        duration_s = yield from self._ask_duration_s()
        if duration_s is not None and self._retry_for_s >= duration_s:
            raise ValueError(
                f"retry_for must be below {duration_s} seconds for {self._key!r}, not "
                f"{self._retry_for_s!r}: the stream recognizes a repeated append for "
                f"{duration_s} seconds, which is its idmp-duration; XCFGSET changes it"
            )
        self._duration_s = duration_s

    def _ask_duration_s(self) -> Steps[int | None]:
        """None for a stream that does not exist. A lost reply leaves open what was known: what
        follows on this connection will be lost, too, or is as good as before."""
        try:
            duration_s: int | None = yield Call(requests.idmp_duration(self._key))
        except ResponseError:  # a user without the right to XINFO, or a key of another type
            return DURATION_S
        except Exception as error:
            if not lost(error):
                raise
            return self._duration_s
        return duration_s

    def _recognizes(self, begun_s: float) -> Steps[bool]:
        """True if the stream recognizes an append that was first sent then. One that does not exist
        has no entry that could be doubled."""
        duration_s = yield from self._ask_duration_s()
        after_s = self._now() - begun_s  # a server that hung may have taken its time
        if duration_s is None or after_s < duration_s - min(1.0, duration_s / 2):
            return True
        log.warning(
            "an append to %r is not repeated: the stream recognizes repeats for %d seconds",
            self._key,
            duration_s,
        )
        return False

    def reserve(self, facts: Sequence[FactFields[Any]], count: int | None) -> Steps[None]:
        """Reserve an ID for each fact. After a lost reply, unknown reservations are given up before
        the next try, so that none of them stalls the readers. `count` is None for a single fact."""
        if facts[0]._reserved is not None:
            return  # two tasks have awaited one fact
        command = requests.treserve(self._key, self._name, count, facts[0]._lease_ms)

        def attempt() -> Steps[ID | list[ID]]:
            doubtful = self._orphans
            if doubtful:
                yield Call(requests.tabort(self._key, self._name, (), list(self._open)))
            self._orphans = True
            try:
                reply: ID | list[ID] = yield Call(command)
            except ResponseError:
                self._orphans = doubtful  # refused, so nothing new was reserved
                raise
            if doubtful:
                # The server may have run the earlier request only now: it was on its way still.
                new = reply if isinstance(reply, list) else [reply]
                yield Call(requests.tabort(self._key, self._name, (), [*self._open, *new]))
            return reply

        reply = yield from self._name_children(self._repeater.until_answered(attempt))
        ids = reply if isinstance(reply, list) else [reply]
        for fact, entry_id in zip(facts, ids, strict=True):
            fact._reserved, self._open[entry_id] = entry_id, fact
        self._orphans = False  # now that all are known, because a signal handler may raise anywhere

    def _name_children(self, steps: Steps[R]) -> Steps[R]:
        """The steps. Their error Sealed gets the names of the children."""
        try:
            return (yield from steps)
        except Sealed as error:
            yield from name_children(self._key, error)
            raise

    def complete(self, fact: FactFields[Any]) -> Steps[None]:
        """Complete a fact, once. Raises ReservationLost or NotReserved if that is too late."""
        if fact._settled is not None:
            if fact._settled:
                return
            raise ReservationLost(f"FACTLOST {fact._id} was given up by this writer")
        if not fact._fields:
            raise ValueError("a fact without fields cannot be completed: set a field or abort it")
        command = requests.tcomplete(self._key, self._name, fact._id, fact._fields)
        try:
            yield from self._repeater.call(command)
        except FactAlreadyDone:
            # An earlier try arrived, and its reply was lost.
            if fact._lost:
                self._counts["lost"] -= 1
        except (ReservationLost, NotReserved):
            self._settle(fact, False, "lost")
            raise
        self._settle(fact, True, "completed")

    def abort(self, fact: FactFields[Any]) -> Steps[None]:
        """Give a fact up; nothing happens if it is settled."""
        if fact._settled is None:
            yield from self._repeater.call(requests.tabort(self._key, self._name, [fact._id], ()))
            self._settle(fact, False, "aborted")

    def leave(self, fact: FactFields[Any], failed: bool) -> Steps[None]:
        """At the end of a fact's block: complete it, or give it up after an exception or without
        fields. While an exception is on its way, nothing else is raised."""
        if fact._settled is not None:
            return
        try:
            if failed:
                yield from self._abort_once(fact)
            elif not fact._fields:
                yield from self.abort(fact)
            else:
                yield from self._complete_or_abort(fact)
        except RedisError as error:
            if not failed:
                raise
            log_open_fact(fact, error)
        finally:
            # Also if the call is interrupted: a heartbeat must not renew what no code holds.
            if fact._settled is None:
                self._orphans = True  # given up before the next reservation, or by `close`
                self._settle(fact, False, "aborted")

    def _complete_or_abort(self, fact: FactFields[Any]) -> Steps[None]:
        """A fact that could not be completed is given up, so that it does not hold readers back
        until its lease is over."""
        try:
            yield from self.complete(fact)
        except Exception:
            if fact._settled is None:
                try:
                    yield from self._abort_once(fact)
                except RedisError as error:
                    log_open_fact(fact, error)
            raise

    def _abort_once(self, fact: FactFields[Any]) -> Steps[None]:
        """Give a fact up without a second try, because an error is on its way already."""
        yield Call(requests.tabort(self._key, self._name, [fact._id], ()))
        self._settle(fact, False, "aborted")

    def heartbeat(self) -> Steps[None]:
        """Restart the leases of the open facts, at most once in a third of the shortest lease."""
        by_lease: dict[int, list[ID]] = {}
        for fact in self._open.values():
            by_lease.setdefault(fact._lease_ms, []).append(fact._id)
        now_s = self._now()
        if not by_lease or now_s - self._renewed_s < min(by_lease) / 3000:
            return
        self._renewed_s = now_s
        for milliseconds, ids in by_lease.items():
            command = requests.trenew(self._key, self._name, milliseconds, ids)
            renewed = yield from self._repeater.call(command)
            if renewed < len(ids):
                yield from self._find_lost(milliseconds, ids)

    def _find_lost(self, milliseconds: int, ids: list[ID]) -> Steps[None]:
        """Some reservations were lost: find out which by renewing each one."""
        for entry_id in ids:
            command = requests.trenew(self._key, self._name, milliseconds, [entry_id])
            if not (yield from self._repeater.call(command)):
                self._open.pop(entry_id)._lost = True
                self._counts["lost"] += 1
                log.warning("fact %s of %r is lost: its lease is over", entry_id, self._name)

    def position(self) -> Steps[ID]:
        """The position of the stream."""
        position = yield from self._repeater.call(requests.tposition(self._key, None, None, None))
        return position or BEGINNING

    def close(self) -> Steps[None]:
        """Give up the open facts. A server that does not answer lets their leases end."""
        if not self._open and not self._orphans:
            return
        facts = list(self._open.values())
        try:
            ids = [] if self._orphans else [fact._id for fact in facts]
            yield Call(requests.tabort(self._key, self._name, ids, ()))
        except RedisError as error:
            log.warning("%d facts of %r could not be given up: %s", len(facts), self._name, error)
        for fact in facts:
            self._settle(fact, False, "aborted")

    def _settle(self, fact: FactFields[Any], completed: bool, count: str) -> None:
        self._open.pop(fact._id, None)
        fact._settled = completed
        if not (fact._lost and count != "completed"):
            self._counts[count] += 1


def log_open_fact(fact: FactFields[Any], error: Exception) -> None:
    log.warning("fact %s could not be given up, its lease will end: %s", fact._id, error)


def lease_ms(lease_s: float) -> int:
    milliseconds = number("lease", lease_s) * 1000
    if not 1 <= milliseconds <= LEASE_MAX_S * 1000:
        raise ValueError(f"a lease must be from 0.001 to 600 seconds, not {lease_s!r}")
    return round(milliseconds)


def fact_count(n: int) -> int:
    return whole("the number of facts", n, FACTS_MAX)
