"""The effects on groups, applied to plain data, and the promises of a group's rules.

Effects are the history of a group in order, so the promises are checked here for each delivery: an
entry is delivered at most MAXDELIVER times and then has one copy, entries of one key come one after
the other, a filter passes over nothing that matches, a paused group gives out nothing.
"""

from __future__ import annotations

from typing import Any

from tests.sim.data import COUNT_MAX, Data, EntryId, Group, Pending, Stream
from tests.sim.promises import demand, id_of

NUMBERS = {
    b"MAXDELIVER": "max_deliver",
    b"MAXINFLIGHT": "max_in_flight",
    b"CONSUMERTTL": "consumer_ttl_ms",
    b"PAUSED": "paused_until_ms",
    b"RUN": "run",
}
UNSET = {"run": 1}  # a rule with this value, otherwise with 0 or nothing, is not stored
COPY_FIELDS = [
    b"dead_stream", b"dead_id", b"dead_group", b"dead_consumer", b"dead_deliveries",
    b"dead_reason", b"dead_text", b"dead_time", b"dead_hops",
]  # fmt: skip
COPY_WORDS = 2 * len(COPY_FIELDS)

Held = tuple[int, bytes, bytes, EntryId]  # database, key, group, entry


def copy_facts(words: tuple[bytes, ...]) -> dict[bytes, bytes] | None:
    """The nine last fields of a copy of a dead letter; None for other entries."""
    own = words[-COPY_WORDS:]
    return dict(zip(own[::2], own[1::2], strict=True)) if list(own[::2]) == COPY_FIELDS else None


class GroupReplay:
    """`given` counts the deliveries of each entry, `taken_back` those that do not count, and
    `copies` has the entries that were copied and did not come back."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.given: dict[Held, int] = {}
        self.taken_back: dict[Held, int] = {}
        self.copies: set[Held] = set()
        self._fresh_copies: list[Held] = []  # of this frame
        self._db = 0

    def _stream(self, key: bytes) -> Stream:
        value = self.data.databases[self._db].get(key)
        demand(isinstance(value, Stream), f"effect on {key!r}, which is no stream")
        assert isinstance(value, Stream)
        return value

    def _found_group(self, key: bytes, name: bytes) -> Group:
        group = self._stream(key).groups.get(name)
        demand(group, f"effect on group {name!r} of {key!r}, which is not there")
        assert group is not None
        return group

    # ------------------------------------------------------------ rules

    def _apply_grouprules(self, key: bytes, name: bytes, *words: bytes) -> None:
        group, rest = self._found_group(key, name), iter(words)
        demand(words, f"no rules of {name!r}")
        for word in rest:
            if word == b"TIMEOUT":
                demand(group.timeout_ms != (ms := int(next(rest))), f"{name!r} has TIMEOUT {ms}")
                group.timeout_ms = ms
            elif word == b"BACKOFF":
                group.backoff_ms = tuple([int(next(rest)) for _ in range(int(next(rest)))])
            elif word == b"WHERE":
                self._set_rule(group, "where", [next(rest) for _ in range(int(next(rest)))])
            elif word == b"ORDER":
                demand(not group.pending and not group.parked, f"{name!r} gets another ORDER")
                kind, field, seed = next(rest), next(rest), int(next(rest))
                is_none = kind == b"NONE"
                self._set_rule(group, "order", None if is_none else [kind, field, seed])
            elif word == b"DEADLETTER":
                self._set_rule(group, "dead_letter", next(rest))
            else:
                self._set_rule(group, NUMBERS[word], int(next(rest)))

    @staticmethod
    def _set_rule(group: Group, rule: str, value: Any) -> None:
        demand(group.rules.get(rule) != value, f"{rule} is {value} already")
        group.rules.pop(rule, None)
        if value and value != UNSET.get(rule):
            group.rules[rule] = value

    def _judge_policy(self, key: bytes, stream: Stream, gone: list[EntryId]) -> None:
        """A policy with EVICT ACKED or DONE and without hard limits takes nothing that is held. The
        plays remove no other entries from such a stream."""
        if stream.policy is None or not any(stream.policy[4:5]) or any(stream.policy[5:]):
            return
        for name, group in stream.groups.items():
            held = [i for i in gone if group.holds(i)]
            demand(not held, f"{key!r} loses {held}, which group {name!r} holds")

    # ------------------------------------------------------------ dead letters

    def _note_copy(self, words: tuple[bytes, ...]) -> None:
        """An entry was appended: if it is a copy, its source ends now."""
        facts = copy_facts(words)
        if facts is None:
            return
        key, name, entry_id = facts[b"dead_stream"], facts[b"dead_group"], id_of(facts[b"dead_id"])
        group, held = self._found_group(key, name), (self._db, key, name, entry_id)
        record = group.pending.get(entry_id)
        demand(record, f"{entry_id} of {name!r} is copied and not pending")
        assert record is not None
        demand(held not in self.copies, f"{entry_id} of {name!r} is copied twice")
        demand(words[:-COPY_WORDS] == self._stream(key).entries.get(entry_id), f"{words} of {held}")
        demand(int(facts[b"dead_deliveries"]) == record.deliveries, f"{facts}, and not {record}")
        self.copies.add(held)
        self._fresh_copies.append(held)

    def _judge_copies(self) -> None:
        """At the end of a frame: what was copied in it is not pending."""
        copies, self._fresh_copies = self._fresh_copies, []
        for db, key, name, entry_id in self.copies.intersection(copies):
            stream = self.data.databases[db].get(key)
            group = stream.groups.get(name) if isinstance(stream, Stream) else None
            is_there = group is not None and entry_id in group.pending
            demand(not is_there, f"{entry_id} of {name!r} is copied and still pending")

    def _apply_copied(self, key: bytes, name: bytes, reason: bytes, number: bytes) -> None:
        counts = self._found_group(key, name).dead_letters
        counts[reason] = counts.get(reason, 0) + int(number)

    def _apply_dead(
        self, key: bytes, name: bytes, reason: bytes, consumer: bytes, text: bytes, *texts: bytes
    ) -> None:
        group = self._found_group(key, name)
        for entry_id in map(id_of, texts):
            record = group.pending.get(entry_id)
            demand(record and not record.dead, f"{entry_id} of {name!r} is dead and was before")
            assert record is not None
            demand(entry_id in self._stream(key).entries, f"{entry_id} is dead and not there")
            record.die((reason, consumer, text))
            group.keys.pop(entry_id, None)  # it does not stop its key

    # ------------------------------------------------------------ keys

    def _note_key(self, key: bytes, group: Group, entry_id: EntryId) -> None:
        """An entry becomes pending, or is pending already."""
        if entry_id in group.parked:
            group.keys[entry_id] = group.parked.pop(entry_id)
        elif entry_id not in group.keys:
            words = self._stream(key).entries.get(entry_id)
            value = None if words is None else group.key_of(words)
            if value is not None:
                group.keys[entry_id] = value

    def _park_later(self, key: bytes, name: bytes, group: Group, entry_id: EntryId) -> None:
        """Take back the entries of the key after this one that readers hold. Those before one that
        waits also wait; the others are parked."""
        later = [other for other in group.of_its_key(entry_id) if other > entry_id]
        waiting = [other for other in later if group.pending[other].waiting]
        for other in later:
            record = group.pending[other]
            if record.waiting:
                continue
            if any(other < one for one in waiting):
                record.give_back(record.last_ms, max(record.deliveries - 1, 0), 0)
            else:
                del group.pending[other]
                group.parked[other] = group.keys.pop(other)
            self._count(self.taken_back, key, name, other)

    def _count(self, counts: dict[Held, int], key: bytes, name: bytes, entry_id: EntryId) -> None:
        held = self._db, key, name, entry_id
        counts[held] = counts.get(held, 0) + 1

    # ------------------------------------------------------------ deliveries

    def _judge_delivery(
        self, group: Group, name: bytes, entry_id: EntryId, record: Pending | None, now_ms: int
    ) -> None:
        """Check that an entry may be delivered now. record: it was delivered before."""
        paused_ms = group.rules.get("paused_until_ms", 0)
        demand(paused_ms <= now_ms, f"{name!r} is paused until {paused_ms} and gives at {now_ms}")
        limit = group.rules.get("max_deliver", 0)
        has_left = record is None or not limit or record.deliveries < limit
        demand(has_left, f"{entry_id} of {name!r} is given more than {limit} times: {record}")

    def _apply_deliver(
        self, key: bytes, name: bytes, owner: bytes, first: bytes, last: bytes, ms: bytes,
        entries_read: bytes, retry_ms: bytes, expire_ms: bytes, mode: bytes,
    ) -> None:  # fmt: skip
        stream, group = self._stream(key), self._found_group(key, name)
        start, end, now_ms = id_of(first), id_of(last), int(ms)
        newer = stream.newer(group.offset)
        demand(start > group.offset, f"group {name!r} of {key!r} goes back to {start}")
        demand(
            newer and newer[0] == start and end in newer,
            f"group {name!r} of {key!r} gives out {start} to {end}; new are {newer}",
        )
        demand("where" not in group.rules, f"{name!r} has a filter and gives all")
        demand("order" not in group.rules, f"{name!r} has an order and gives all")
        retry = None if retry_ms == b"-" else (int(retry_ms), int(expire_ms))
        before = group.in_flight
        for entry_id in newer[: newer.index(end) + 1]:
            self._judge_delivery(group, name, entry_id, None, now_ms)
            if mode == b"keep":
                group.pending[entry_id] = Pending(now_ms, now_ms, 1, retry, owner)
                self._count(self.given, key, name, entry_id)
        self._judge_places(group, name, before)
        group.offset, group.entries_read = end, int(entries_read)

    def _judge_places(self, group: Group, name: bytes, before: int) -> None:
        limit = group.rules.get("max_in_flight", 0)
        fits = not limit or group.in_flight <= max(limit, before)
        demand(fits, f"readers of {name!r} hold {group.in_flight} entries, at most {limit}")

    def _apply_pick(
        self, key: bytes, name: bytes, owner: bytes, to: bytes, ms: bytes, entries_read: bytes,
        retry_ms: bytes, expire_ms: bytes, number: bytes, *texts: bytes,
    ) -> None:  # fmt: skip
        stream, group = self._stream(key), self._found_group(key, name)
        ids, now_ms, until = list(map(id_of, texts)), int(ms), id_of(to)
        retry = None if retry_ms == b"-" else (int(retry_ms), int(expire_ms))
        self._judge_pick(group, stream, name, ids, until, bool(owner or group.timeout_ms))
        before = group.in_flight
        delivered, busy = ids[: int(number)], set(group.keys.values())
        for entry_id in delivered:
            self._judge_delivery(group, name, entry_id, None, now_ms)
            demand(entry_id in stream.entries, f"{entry_id} is given out and not there")
            self._note_key(key, group, entry_id)
            value = group.keys.get(entry_id)
            demand(value not in busy, f"{entry_id} of {name!r} is given, its key {value!r} is busy")
            group.pending[entry_id] = Pending(now_ms, now_ms, 1, retry, owner)
            self._count(self.given, key, name, entry_id)
        for entry_id in ids[int(number) :]:
            value = group.key_of(stream.entries[entry_id])
            demand(value is not None, f"{entry_id} of {name!r} is parked and has no key")
            assert value is not None
            group.parked[entry_id] = value
        self._judge_runs(group, name, delivered)
        self._judge_places(group, name, before)
        demand(until >= group.offset, f"group {name!r} of {key!r} goes back to {until}")
        group.offset, group.entries_read = until, int(entries_read)

    @staticmethod
    def _judge_pick(
        group: Group, stream: Stream, name: bytes, ids: list[EntryId], until: EntryId, keeps: bool
    ) -> None:
        """A group with a filter gets exactly what matches, or parks it."""
        match = {
            entry_id
            for entry_id in stream.newer(group.offset)
            if entry_id <= until and group.matches(stream.entries[entry_id])
        }
        fresh = {entry_id for entry_id in ids if entry_id > group.offset}
        known = match & (set(group.pending) | set(group.parked))
        # A read without an owner or a deadline settles what it gets, and records only how far.
        fits = fresh == match - known if keeps else fresh <= match
        demand(fits, f"{name!r} gets {fresh} up to {until}, not {match - known}")
        others = set(ids) - fresh
        demand(others <= set(group.parked), f"{others} of {name!r} are given and were not parked")

    @staticmethod
    def _judge_runs(group: Group, name: bytes, delivered: list[EntryId]) -> None:
        """Entries of one key come in ID order, and only as many at once as RUN allows."""
        counts: dict[bytes, int] = {}
        for entry_id in delivered:
            value = group.keys.get(entry_id)
            if value is None:
                continue
            counts[value] = counts.get(value, 0) + 1
            first = min((i for i, k in group.parked.items() if k == value), default=entry_id)
            demand(first >= entry_id, f"{entry_id} of {name!r} comes before {first} of {value!r}")
        run = group.rules.get("run", 1)
        demand(max(counts.values(), default=0) <= run, f"{name!r} has RUN {run} and gives {counts}")

    def _apply_take(
        self, key: bytes, name: bytes, owner: bytes, ms: bytes, retry_ms: bytes, expire_ms: bytes,
        *texts: bytes,
    ) -> None:  # fmt: skip
        group, now_ms = self._found_group(key, name), int(ms)
        before = group.in_flight
        demand(group.timeout_ms, f"{name!r} of {key!r} is not managed")
        for entry_id in map(id_of, texts):
            record = group.pending.get(entry_id)
            demand(record, f"{entry_id} of {name!r} is given out again and is not pending")
            assert record is not None
            self._judge_delivery(group, name, entry_id, record, now_ms)
            demand(
                record.is_due(now_ms, True, group.timeout_ms) and not record.has_expired(now_ms),
                f"{entry_id} of {name!r} is given out again at {now_ms}: {record}",
            )
            demand(entry_id in self._stream(key).entries, f"{entry_id} is taken and not there")
            for other in group.of_its_key(entry_id):
                one = group.pending[other]
                is_first = one.waiting >= record.waiting and (
                    other > entry_id or one.waiting > record.waiting
                )
                demand(is_first, f"{entry_id} of {name!r} comes before {other}, {one}")
            group.take(entry_id, owner, now_ms, (int(retry_ms), int(expire_ms)))
            self._count(self.given, key, name, entry_id)
            self._park_later(key, name, group, entry_id)
        self._judge_places(group, name, before)

    def _apply_claim(
        self, key: bytes, name: bytes, consumer: bytes, ms: bytes, delivery: bytes,
        deliveries: bytes, *texts: bytes,
    ) -> None:  # fmt: skip
        group, delivery_ms, now_ms = self._consumer(key, name, consumer), int(delivery), int(ms)
        limit = group.rules.get("max_deliver", 0)
        for entry_id in map(id_of, texts):
            demand(entry_id in self._stream(key).entries, f"{entry_id} is claimed and not there")
            known = group.pending.get(entry_id)
            if known is not None and group.timeout_ms and deliveries in (b"+", b"="):
                fits = not known.dead and not (limit and known.deliveries >= limit)
                demand(fits, f"{entry_id} of {name!r} has ended and is claimed: {known}")
            for other in group.of_its_key(entry_id):
                one = group.pending[other]
                is_free = one.waiting or one.is_due(now_ms, True, group.timeout_ms)
                free = other > entry_id and is_free
                demand(free, f"{entry_id} of {name!r} is claimed before {other}, {one}")
            self._note_key(key, group, entry_id)
            fresh = Pending(delivery_ms, delivery_ms, 1, None)
            record = group.pending.setdefault(entry_id, fresh)
            if deliveries == b"+":
                record.deliveries = min(record.deliveries + 1, COUNT_MAX)
                self._count(self.given, key, name, entry_id)
            elif deliveries != b"=":
                record.deliveries = int(deliveries)
            record.take(consumer, delivery_ms, group.claimed_retry(now_ms, delivery_ms))
            self._park_later(key, name, group, entry_id)

    def _apply_redeliver(
        self, key: bytes, name: bytes, ms: bytes, retry_ms: bytes, expire_ms: bytes, *texts: bytes
    ) -> None:
        group, now_ms = self._found_group(key, name), int(ms)
        for text in texts:
            record = group.pending.get(id_of(text))
            demand(record, f"{text!r} of {name!r} is given out again and is not pending")
            assert record is not None
            demand(
                # an owner may read its own again
                record.owner or record.is_due(now_ms, True, group.timeout_ms),
                f"{text!r} of {name!r} is given out again at {now_ms}, before it is due: {record}",
            )
            demand(
                not record.has_expired(now_ms),
                f"{text!r} of {name!r} is given out again at {now_ms} and has expired: {record}",
            )
            record.last_ms = now_ms
            record.deliveries = min(record.deliveries + 1, COUNT_MAX)
            if retry_ms != b"-":
                record.retry = int(retry_ms), int(expire_ms)

    # ------------------------------------------------------------ what becomes of a delivery

    def _apply_release(
        self, key: bytes, name: bytes, ms: bytes, deliveries: bytes, *texts: bytes
    ) -> None:
        group = self._found_group(key, name)
        for entry_id in map(id_of, texts):
            record = group.pending.setdefault(entry_id, Pending(int(ms), int(ms), 0, None))
            if deliveries == b"-":
                record.deliveries = max(record.deliveries - 1, 0)
            elif deliveries != b"=":
                record.deliveries = int(deliveries)
            record.owner, record.last_ms, record.waiting = b"", 0, False

    def _apply_wait(
        self, key: bytes, name: bytes, ms: bytes, delay_ms: bytes, deliveries: bytes,
        *texts: bytes,
    ) -> None:  # fmt: skip
        group, now_ms = self._found_group(key, name), int(ms)
        demand(group.timeout_ms, f"{name!r} of {key!r} is not managed")
        for entry_id in map(id_of, texts):
            is_new = entry_id not in group.pending
            self._note_key(key, group, entry_id)
            record = group.pending.setdefault(entry_id, Pending(now_ms, now_ms, 0, None))
            ends = deliveries != b"-" and "dead_letter" in group.rules
            demand(ends or not record.waiting, f"{entry_id} of {name!r} waits and is given back")
            count = record.deliveries
            if deliveries == b"-":
                count = max(count - 1, 0)
                self._count(self.taken_back, key, name, entry_id)
            elif deliveries != b"=":
                count = int(deliveries)
            record.give_back(now_ms, count, int(delay_ms))
            self.copies.discard((self._db, key, name, entry_id))  # it comes again, by TREDRIVE
            if not is_new:
                self._park_later(key, name, group, entry_id)

    def _apply_deadline(
        self, key: bytes, name: bytes, ms: bytes, span_ms: bytes, *texts: bytes
    ) -> None:
        group = self._found_group(key, name)
        for entry_id in map(id_of, texts):
            record = group.pending.get(entry_id)
            demand(record and not record.waiting, f"{entry_id} of {name!r} is not in flight")
            assert record is not None
            record.extend(int(ms), int(span_ms))

    def _apply_ack(self, key: bytes, name: bytes, *texts: bytes) -> None:
        group = self._found_group(key, name)
        for entry_id in map(id_of, texts):
            held = entry_id in group.pending or entry_id in group.parked
            demand(held, f"{entry_id} of {name!r} is acknowledged and not pending")
            group.forget([entry_id])

    # ------------------------------------------------------------ groups and consumers

    def _apply_group(
        self, key: bytes, name: bytes, text: bytes, entries_read: bytes, ttl_ms: bytes
    ) -> None:
        stream = self._stream(key)
        demand(name not in stream.groups, f"GROUP {name!r} of {key!r} is there")
        group = stream.make_group(name, id_of(text), int(ttl_ms), 0)
        group.entries_read = int(entries_read)

    def _apply_groupttl(self, key: bytes, name: bytes, ttl_ms: bytes) -> None:
        self._found_group(key, name).ttl_ms = int(ttl_ms)

    def _apply_groupsetid(self, key: bytes, name: bytes, text: bytes, entries_read: bytes) -> None:
        group = self._found_group(key, name)
        group.offset, group.entries_read = id_of(text), int(entries_read)
        group.parked.clear()

    def _apply_groupdrop(self, key: bytes, name: bytes) -> None:
        self._found_group(key, name)
        del self._stream(key).groups[name]

    def _apply_consumer(self, key: bytes, name: bytes, consumer: bytes, ms: bytes) -> None:
        self._found_group(key, name).consumers[consumer] = None

    def _consumer(self, key: bytes, name: bytes, consumer: bytes) -> Group:
        group = self._found_group(key, name)
        demand(consumer in group.consumers, f"{name!r} of {key!r} has no consumer {consumer!r}")
        return group

    def _apply_consumerdrop(self, key: bytes, name: bytes, consumer: bytes) -> None:
        group = self._consumer(key, name, consumer)
        del group.consumers[consumer]
        held = group.held_by(consumer)
        demand(not (group.timeout_ms and held), f"managed {name!r} drops {held} with {consumer!r}")
        group.forget([i for i, record in group.pending.items() if record.owner == consumer])

    def _apply_seen(self, key: bytes, name: bytes, consumer: bytes, ms: bytes) -> None:
        self._consumer(key, name, consumer)
