"""An independent implementation that applies effects to plain data and checks each of them.

It shares no code with the server's own application of effects, so a recovered server can be
compared with exactly the durable effects. Effects are the server's history in order, so this module
also checks the promises about order: IDs increase, offsets never go back, a retry is never early,
no expired entry is delivered.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.sim.data import COUNT_MAX, Data, EntryId, Group, Pending, Stream

COUNTER = b"count"  # keys with this prefix count transactions
RULES = {
    b"TIMEOUT": "timeout_ms",
    b"BACKOFF": "backoff_ms",
    b"MAXINFLIGHT": "max_in_flight",
    b"PAUSED": "paused_until_ms",
}
HALVES = b"<", b">"  # two keys with these prefixes and the same rest are a pair


class BrokenPromise(AssertionError):
    """The server broke a promise."""


def demand(true: object, sentence: str) -> None:
    if not true:
        raise BrokenPromise(sentence)


# The codes of effects, as in docs/formats.md.
CODES = dict(
    enumerate(
        b"""
        - HISTORY TIME SELECT STREAM APPEND APPENDONCE PRODUCERDROP EVICT POLICY EVICTIDS XDEL
        RESERVE COMPLETE ABORT LEASE SEAL PARENTS FOLLOW CLOCK SETID IDMPSET IDMP IDMPREPEAT
        GROUP GROUPTTL GROUPSETID GROUPDROP CONSUMER CONSUMERDROP DELIVER REDELIVER CLAIM
        RELEASE ACK SEEN SET UPDATE EXTEND PATCH PADDED EXPIRE - DEL RENAME COPY RESTORE
        TRESTORE SWAPDB FLUSHDB FLUSHALL GROUPRULES TAKE WAIT DEADLINE DEAD COPIED
        SCHEDULE UNSCHEDULE FIRE XDELRANGE
        """.split()
    )
)


def number_at(payload: bytes, at: int) -> tuple[int, int]:
    """A varint, and the offset after it."""
    number = shift = 0
    while True:
        number |= (payload[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if payload[at - 1] < 128:
            return number, at


def coded_effect(payload: bytes, at: int) -> tuple[list[bytes], int]:
    """An effect with a code, with IDs and numbers as text, and the offset after it."""
    words = [CODES[payload[at]]]
    count, at = number_at(payload, at + 1)
    for _ in range(count):
        head, at = number_at(payload, at)
        number, after = number_at(payload, at) if head < 2 else (0, at)
        if head == 0:
            seq, at = number_at(payload, after)
            words.append(b"%d-%d" % (number, seq))
        elif head == 1:
            words.append(b"%d" % number)
            at = after
        else:
            words.append(payload[at : at + head - 2])
            at += head - 2
    return words, at


def effects_of(payload: bytes) -> Iterator[list[bytes]]:
    at = 0
    while at < len(payload):
        if payload[at : at + 1] != b"*":
            words, at = coded_effect(payload, at)
            yield words
            continue
        end = payload.index(b"\r\n", at)
        count, at = int(payload[at + 1 : end]), end + 2
        words = []
        for _ in range(count):
            end = payload.index(b"\r\n", at)
            size, at = int(payload[at + 1 : end]), end + 2
            words.append(payload[at : at + size])
            at += size + 2
        yield words


def id_of(text: bytes) -> EntryId:
    ms, seq = text.split(b"-")
    return int(ms), int(seq)


class Replay:
    """Plain data that effects are applied to."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self._db = 0

    def apply(self, payload: bytes) -> None:
        """One frame's payload."""
        self._db = 0
        for number, (name, *words) in enumerate(effects_of(payload)):
            if name == b"TIME":  # after the line of history, if one begins
                demand(number <= 1 and words[0].isdigit(), f"TIME {words!r} as effect {number}")
                continue
            if name == b"SELECT":
                self._db = int(words[0])
                continue
            method = getattr(self, "_apply_" + name.decode().lower(), None)
            demand(method, f"effect {name!r} is not known")
            method(*words)  # type: ignore[misc]
        self._judge_pairs()

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

    def _apply_history(self, name: bytes, seq: bytes) -> None:
        """It has no information about the data."""

    # Keys

    def _apply_set(self, key: bytes, value: bytes) -> None:
        self._judge_count(key, value)
        self.data.put(self._db, key, value)

    def _apply_update(self, key: bytes, value: bytes) -> None:
        self._judge_count(key, value)
        self.data.put(self._db, key, value, keep_expiry=True)

    def _apply_extend(self, key: bytes, more: bytes) -> None:
        value = self.data.databases[self._db].get(key)
        demand(isinstance(value, bytes), f"EXTEND of {key!r}, which is no string")
        assert isinstance(value, bytes)
        self.data.put(self._db, key, value + more, keep_expiry=True)

    def _judge_count(self, key: bytes, value: bytes) -> None:
        """Check that a counter, which its clients watch, is only ever set to its value plus one."""
        if key.startswith(COUNTER):
            was = self.data.databases[self._db].get(key, b"0")
            demand(was == b"%d" % (int(value) - 1), f"{key!r} was {was!r} and becomes {value!r}")

    def _judge_pairs(self) -> None:
        """Check that both halves of a pair are only set in one transaction, to the same value."""
        for db in self.data.databases:
            halves = [{key[1:]: db[key] for key in db if key[:1] == half} for half in HALVES]
            demand(halves[0] == halves[1], f"half a transaction: {halves}")

    def _apply_expire(self, key: bytes, at_ms: bytes) -> None:
        demand(key in self.data.databases[self._db], f"EXPIRE of {key!r}, which is not there")
        if int(at_ms):
            self.data.expiries[self._db][key] = int(at_ms)
        else:
            self.data.expiries[self._db].pop(key, None)

    def _apply_rename(self, key: bytes, to: bytes, new_key: bytes) -> None:
        demand(key in self.data.databases[self._db], f"RENAME of {key!r}, which is not there")
        self.data.move(self._db, key, int(to), new_key)

    def _apply_copy(self, key: bytes, to: bytes, new_key: bytes, incarnation: bytes) -> None:
        demand(key in self.data.databases[self._db], f"COPY of {key!r}, which is not there")
        self.data.duplicate(self._db, key, int(to), new_key, int(incarnation))

    def _apply_swapdb(self, first: bytes, second: bytes) -> None:
        self.data.swap(int(first), int(second))

    def _apply_del(self, *keys: bytes) -> None:
        for key in keys:
            demand(key in self.data.databases[self._db], f"DEL of {key!r}, which is not there")
            self.data.drop(self._db, key)

    def _apply_flushdb(self) -> None:
        self.data.clear(self._db)

    def _apply_flushall(self) -> None:
        for db in range(len(self.data.databases)):
            self.data.clear(db)

    # Streams

    def _apply_stream(self, key: bytes, incarnation: bytes) -> None:
        demand(key not in self.data.databases[self._db], f"STREAM at {key!r}, which is there")
        self.data.put(self._db, key, Stream(int(incarnation)))

    def _apply_append(self, key: bytes, text: bytes, *words: bytes) -> None:
        stream, entry_id = self._stream(key), id_of(text)
        demand(entry_id > stream.last_id, f"{key!r}: id {entry_id} after {stream.last_id}")
        stream.append(entry_id, words)
        self.data.ever.add((self._db, key, entry_id))

    def _apply_appendonce(
        self, key: bytes, text: bytes, name: bytes, number: bytes, *words: bytes
    ) -> None:
        before = self._stream(key).producers.get(name, -1)
        demand(before < int(number), f"{key!r}: {name!r} has sent {before} and again {number!r}")
        self._apply_append(key, text, *words)
        self._stream(key).note_producer(name, int(number))

    def _apply_producerdrop(self, key: bytes, name: bytes) -> None:
        known = list(self._stream(key).producers)
        demand(known[:1] == [name], f"{key!r}: {name!r} is forgotten before others of {known}")
        del self._stream(key).producers[name]

    def _apply_schedule(
        self, key: bytes, due: bytes, number: bytes, name: bytes, *words: bytes
    ) -> None:
        stream, ticket = self._stream(key), (int(due), int(number))
        demand(ticket[1] == stream.last_number + 1, f"{key!r}: ticket {ticket}")
        demand(words and len(words) % 2 == 0, f"{key!r}: {ticket} has the fields {words}")
        stream.cancel_named(name)
        stream.put_scheduled(ticket, name, words)

    def _apply_unschedule(self, key: bytes, due: bytes, number: bytes) -> None:
        found = self._stream(key).scheduled.pop((int(due), int(number)), None)
        demand(found, f"{key!r}: {due!r}.{number!r} is cancelled and not scheduled")

    def _apply_fire(self, key: bytes, due: bytes, number: bytes, text: bytes) -> None:
        ticket = int(due), int(number)
        found = self._stream(key).scheduled.pop(ticket, None)
        demand(found, f"{key!r}: {ticket} fires and is not scheduled")
        assert found is not None
        demand(id_of(text)[0] >= ticket[0], f"{key!r}: {ticket} fires before its time, as {text!r}")
        self._apply_append(key, text, *found[1])

    def _apply_evict(self, key: bytes, text: bytes) -> None:
        stream = self._stream(key)
        bound = None if text == b"+" else id_of(text)
        gone = [i for i in stream.entries if bound is None or i < bound]
        demand(gone, f"{key!r}: EVICT {text!r} evicts nothing")
        stream.evict(gone)

    def _apply_policy(
        self, key: bytes, length: bytes, age_ms: bytes, size: bytes, how: bytes
    ) -> None:
        limits = int(length), int(age_ms), int(size)
        demand(how in (b"exact", b"approx"), f"{key!r}: POLICY {how!r}")
        self._stream(key).policy = (*limits, how == b"exact") if any(limits) else None

    def _apply_xdel(self, key: bytes, *texts: bytes) -> None:
        for text in texts:
            demand(self._stream(key).delete(id_of(text)), f"{key!r}: XDEL of missing {text!r}")

    def _apply_xdelrange(self, key: bytes, first: bytes, last: bytes) -> None:
        stream = self._stream(key)
        for entry_id in [i for i in stream.entries if id_of(first) <= i <= id_of(last)]:
            stream.delete(entry_id)

    def _apply_evictids(self, key: bytes, *texts: bytes) -> None:
        stream, gone = self._stream(key), list(map(id_of, texts))
        demand(set(gone) <= set(stream.entries), f"{key!r}: EVICTIDS of {texts!r}")
        held = [i for i in gone for group in stream.groups.values() if i in group.pending]
        demand(not held, f"{key!r}: {held} are pending and evicted one by one")
        stream.evict(gone)

    def _apply_setid(self, key: bytes, last: bytes, added: bytes, deleted: bytes) -> None:
        stream = self._stream(key)
        stream.last_id, stream.entries_added = id_of(last), int(added)
        stream.max_deleted = id_of(deleted)

    def _apply_idmpset(self, key: bytes, duration_s: bytes, maxsize: bytes) -> None:
        self._stream(key).once.configure(int(duration_s), int(maxsize))

    def _apply_idmp(
        self, key: bytes, producer: bytes, iid: bytes, text: bytes, at_ms: bytes
    ) -> None:
        stream, entry_id = self._stream(key), id_of(text)
        # If the clock was ahead before, messages expired permanently; IDs show how far it was.
        known = stream.once.find(producer, iid, max(int(at_ms), stream.last_id[0]))
        demand(known is None, f"{key!r}: {producer!r} {iid!r} is {known} and again {entry_id}")
        there = entry_id in stream.entries or entry_id <= stream.max_evicted  # by its own policy
        demand(there, f"{key!r}: {iid!r} became {entry_id}, which is nothing")
        stream.once.add(producer, iid, entry_id, int(at_ms))

    def _apply_idmprepeat(self, key: bytes) -> None:
        demand(self._stream(key).once.seen, f"{key!r}: a repeat of nothing")

    # Groups

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
        for entry_id in [i for i, record in group.pending.items() if record.owner == consumer]:
            del group.pending[entry_id]

    def _apply_seen(self, key: bytes, name: bytes, consumer: bytes, ms: bytes) -> None:
        self._consumer(key, name, consumer)

    def _apply_claim(
        self, key: bytes, name: bytes, consumer: bytes, ms: bytes, delivery: bytes,
        deliveries: bytes, *texts: bytes,
    ) -> None:  # fmt: skip
        group, delivery_ms = self._consumer(key, name, consumer), int(delivery)
        for entry_id in map(id_of, texts):
            demand(entry_id in self._stream(key).entries, f"{entry_id} is claimed and not there")
            fresh = Pending(delivery_ms, delivery_ms, 1, None)
            record = group.pending.setdefault(entry_id, fresh)
            if deliveries == b"+":
                record.deliveries = min(record.deliveries + 1, COUNT_MAX)
            elif deliveries != b"=":
                record.deliveries = int(deliveries)
            record.take(consumer, delivery_ms, group.claimed_retry(int(ms), delivery_ms))

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

    def _apply_grouprules(self, key: bytes, name: bytes, *words: bytes) -> None:
        group, rest = self._found_group(key, name), list(words)
        demand(rest, f"no rules of {name!r}")
        while rest:
            rule, value = RULES[rest.pop(0)], int(rest.pop(0))
            rules: object = value
            if rule == "backoff_ms":
                rules, rest = tuple(map(int, rest[:value])), rest[value:]
            demand(getattr(group, rule) != rules, f"{name!r} has {rule} {rules} already")
            setattr(group, rule, rules)

    def _apply_take(
        self, key: bytes, name: bytes, owner: bytes, ms: bytes, retry_ms: bytes, expire_ms: bytes,
        *texts: bytes,
    ) -> None:  # fmt: skip
        group, now_ms = self._found_group(key, name), int(ms)
        demand(group.timeout_ms, f"{name!r} of {key!r} is not managed")
        for entry_id in map(id_of, texts):
            record = group.pending.get(entry_id)
            demand(record, f"{entry_id} of {name!r} is given out again and is not pending")
            assert record is not None
            demand(
                record.is_due(now_ms, True) and not record.has_expired(now_ms),
                f"{entry_id} of {name!r} is given out again at {now_ms}: {record}",
            )
            demand(entry_id in self._stream(key).entries, f"{entry_id} is taken and not there")
            group.take(entry_id, owner, now_ms, (int(retry_ms), int(expire_ms)))

    def _apply_wait(
        self, key: bytes, name: bytes, ms: bytes, delay_ms: bytes, deliveries: bytes,
        *texts: bytes,
    ) -> None:  # fmt: skip
        group, now_ms = self._found_group(key, name), int(ms)
        demand(group.timeout_ms, f"{name!r} of {key!r} is not managed")
        for entry_id in map(id_of, texts):
            record = group.pending.setdefault(entry_id, Pending(now_ms, now_ms, 0, None))
            demand(not record.waiting, f"{entry_id} of {name!r} waits and is given back")
            count = record.deliveries
            if deliveries == b"-":
                count = max(count - 1, 0)
            elif deliveries != b"=":
                count = int(deliveries)
            record.give_back(now_ms, count, int(delay_ms))

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

    def _apply_deadline(
        self, key: bytes, name: bytes, ms: bytes, span_ms: bytes, *texts: bytes
    ) -> None:
        group = self._found_group(key, name)
        for entry_id in map(id_of, texts):
            record = group.pending.get(entry_id)
            demand(record and not record.waiting, f"{entry_id} of {name!r} is not in flight")
            assert record is not None
            record.extend(int(ms), int(span_ms))

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
        retry = None if retry_ms == b"-" else (int(retry_ms), int(expire_ms))
        for entry_id in newer[: newer.index(end) + 1]:
            if mode == b"keep":
                group.pending[entry_id] = Pending(now_ms, now_ms, 1, retry, owner)
        group.offset, group.entries_read = end, int(entries_read)

    def _apply_redeliver(
        self, key: bytes, name: bytes, ms: bytes, retry_ms: bytes, expire_ms: bytes, *texts: bytes
    ) -> None:
        group, now_ms = self._found_group(key, name), int(ms)
        for text in texts:
            record = group.pending.get(id_of(text))
            demand(record, f"{text!r} of {name!r} is given out again and is not pending")
            assert record is not None
            demand(
                record.owner or record.is_due(now_ms, True),  # an owner may read its own again
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

    def _apply_ack(self, key: bytes, name: bytes, *texts: bytes) -> None:
        for text in texts:
            record = self._found_group(key, name).pending.pop(id_of(text), None)
            demand(record, f"{text!r} of {name!r} is acknowledged and not pending")
