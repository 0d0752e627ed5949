"""Reads: TREAD and XREADGROUP, alone and blocked, and acknowledgements."""

from __future__ import annotations

from dataclasses import dataclass

from tests.sim.data import ZERO, EntryId, Group, Pending, Retry, Stream
from tests.sim.model import claims
from tests.sim.model.answers import (
    NULL_ARRAY,
    WRONG_TYPE,
    Answer,
    Pairs,
    Refused,
    dashed,
    dotted,
    parse_id,
)
from tests.sim.model.clients import ClientModel, Key, Request, Waiter
from tests.sim.model.model import Model, does

U64_MAX = 2**64 - 1


def stream_info(stream: Stream | None) -> Answer:
    """[first ID, last ID], the info of WITHINFO."""
    if stream is None:
        return [None, None]
    if not stream.entries:
        return [None, dotted(stream.last_id)]
    return [dotted(min(stream.entries)), dotted(max(stream.entries))]


# ------------------------------------------------------------------------------------ TREAD


@dataclass(slots=True)
class Read:
    """A TREAD's arguments."""

    key: bytes
    last_id: bytes
    limit: int
    block_ms: int | None = None
    group: bytes | None = None
    ttl_ms: int = 0
    retry: Retry | None = None
    with_info: bool = False

    @staticmethod
    def parsed(words: Request) -> Read:
        read = Read(words[1], words[2], int(words[3]))
        at = 4
        while at < len(words):
            option = words[at].upper()
            if option == b"BLOCK":
                read.block_ms = int(words[at + 1])
                at += 2
            elif option == b"GROUP":
                read.group, read.ttl_ms = words[at + 1], int(words[at + 2])
                at += 3
            elif option == b"RETRY":
                read.retry = int(words[at + 1]), int(words[at + 2])
                at += 3
            else:
                assert option == b"WITHINFO"
                read.with_info = True
                at += 1
        return read

    @property
    def blocks(self) -> bool:
        return self.block_ms is not None and self.limit > 0

    def start(self, stream: Stream | None) -> EntryId:
        if self.last_id not in (b"", b"$", b">"):
            return parse_id(self.last_id)
        return ZERO if stream is None else stream.last_id

    def entries(self, stream: Stream | None, after: EntryId) -> list[Answer]:
        """The reply of a read without a group."""
        reply: list[Answer] = [stream_info(stream)] if self.with_info else []
        if stream is None or self.limit == 0:
            return reply
        if ZERO < after < stream.max_evicted:
            reply.append(None)
        reply += [[dotted(i), *stream.entries[i]] for i in stream.newer(after)[: self.limit]]
        return reply

    def deliver(
        self, model: Model, stream: Stream, group: Group, with_zero: bool
    ) -> list[Answer] | None:
        """A group read's reply; None when there are no entries."""
        now_ms = model.state.steady_ms
        retry = self.retry
        if retry is None and group.timeout_ms:
            retry = group.timeout_ms, 0
        due = group.due(now_ms, with_zero)[: self.limit]
        new = stream.newer(group.offset)
        if self.limit == 0 or not (due or new):
            return None
        reply: list[Answer] = [stream_info(stream)] if self.with_info else []
        new = new[: self.limit - len(due)]
        if new and group.offset < stream.max_evicted and group.gap_floor < stream.max_evicted:
            reply.append(None)
        reply += [self._redeliver(stream, group, entry_id, now_ms) for entry_id in due]
        for entry_id in new:
            reply.append([dotted(entry_id), *stream.entries[entry_id]])
            group.offset = entry_id
            if retry is not None:
                group.pending[entry_id] = Pending(now_ms, now_ms, 1, retry)
                group.note(group.pending[entry_id], again=False)
        model.values.expire(group)
        group.last_used_ms = now_ms
        return reply

    def _redeliver(self, stream: Stream, group: Group, entry_id: EntryId, now_ms: int) -> Answer:
        if entry_id not in stream.entries:
            del group.pending[entry_id]
            return None
        if group.timeout_ms:
            group.take(entry_id, b"", now_ms, self.retry or (group.timeout_ms, 0))
        else:
            group.redeliver(entry_id, now_ms, self.retry)
        group.note(group.pending[entry_id])
        return [dotted(entry_id), *stream.entries[entry_id]]


class TreadWait(Waiter):
    """A blocked TREAD."""

    def __init__(self, model: Model, client: ClientModel, words: Request, read: Read) -> None:
        deadline_ms = model.state.steady_ms + read.block_ms if read.block_ms else 0
        super().__init__(client, words, [(client.db, read.key)], deadline_ms, read.group)
        self.model = model
        self.read = read

    @property
    def key(self) -> Key:
        [key] = self.keys
        return key

    def timeout_answer(self) -> Answer:
        if not self.read.with_info:
            return NULL_ARRAY
        stream = self.model.values.value(self.key)
        return [stream_info(stream if isinstance(stream, Stream) else None)]


class PlainWait(TreadWait):
    """A blocked TREAD without a group, for the entries after an ID."""

    def __init__(
        self, model: Model, client: ClientModel, words: Request, read: Read, after: EntryId
    ) -> None:
        super().__init__(model, client, words, read)
        self.after = after

    def attempt(self) -> Answer | None:
        value = self.model.values.value(self.key)
        if isinstance(value, bytes):
            raise Refused(WRONG_TYPE)
        if value is None or not value.newer(self.after):
            return None
        return self.read.entries(value, self.after)

    def lateness(self, stream: Stream) -> str | None:
        return "its entry is there" if stream.newer(self.after) else None


class GroupWait(TreadWait):
    """A blocked TREAD with a group. It creates the group again if that was deleted."""

    def __init__(
        self, model: Model, client: ClientModel, words: Request, read: Read, incarnation: int
    ) -> None:
        super().__init__(model, client, words, read)
        self.after = ZERO if read.last_id in (b"", b"$", b">") else parse_id(read.last_id)
        self.key_was_gone = False
        self.incarnation = incarnation  # of the stream at the key when it was last checked

    def attempt(self) -> Answer | None:
        model, key = self.model, self.key
        value = model.values.value(key)
        if model.state.write_error is not None:
            return None
        if value is None:
            self.key_was_gone = True
            return None
        if isinstance(value, bytes):
            raise Refused(WRONG_TYPE)
        assert self.group is not None
        group = model.values.live(key, self.group)
        if group is None and self.read.last_id == b">":
            raise not_existing(key[1], self.group)
        if group is None:
            is_other = self.key_was_gone or self.incarnation != value.incarnation
            offset = self.after if is_other else value.last_id
            now_ms = model.state.steady_ms
            group = value.make_group(self.group, offset, self.read.ttl_ms, now_ms)
            model.remade.add((key, self.group))
        self.key_was_gone, self.incarnation = False, value.incarnation
        return self.read.deliver(model, value, group, False)

    def lateness(self, stream: Stream) -> str | None:
        assert self.group is not None
        group = stream.groups.get(self.group)
        if group is None:
            return "its group is gone"
        self.model.values.expire(group)
        due = group.due(self.model.state.steady_ms, False)
        return late_entries(due, stream.newer(group.offset))


def late_entries(due: list[EntryId], new: list[EntryId]) -> str | None:
    return f"{due} are due and {new} new" if due or new else None


def not_existing(key: bytes, name: bytes) -> Refused:
    return Refused(
        f"NOGROUP No such key '{key.decode()}' or consumer group '{name.decode()}' in TREAD "
        "with the ID >"
    )


@does("tread")
def tread(model: Model, client: ClientModel, words: Request) -> Answer:
    read = Read.parsed(words)
    if read.group is not None:
        return read_group(model, client, words, read, read.group)
    stream = model.values.stream((client.db, read.key))
    after = read.start(stream)
    if read.blocks and (stream is None or not stream.newer(after)):
        return PlainWait(model, client, words, read, after)
    return read.entries(stream, after)


def read_group(
    model: Model, client: ClientModel, words: Request, read: Read, name: bytes
) -> Answer:
    model.state.check_writable()
    key = client.db, read.key
    if read.last_id == b">" and model.values.value(key) is None:
        raise not_existing(read.key, name)
    stream = model.values.make(key)
    group = model.values.live(key, name)
    if group is None and read.last_id == b">":
        raise not_existing(read.key, name)
    now_ms = model.state.steady_ms
    if group is None:
        group = stream.make_group(name, read.start(stream), read.ttl_ms, now_ms)
    group.ttl_ms = read.ttl_ms
    reply = read.deliver(model, stream, group, True)
    group.last_used_ms = now_ms
    if reply is not None:
        return reply
    if read.blocks:
        return GroupWait(model, client, words, read, stream.incarnation)
    return [stream_info(stream)] if read.with_info else []


@does("tack", "xack")
def tack(model: Model, client: ClientModel, words: Request) -> Answer:
    stream = model.values.stream((client.db, words[1]))
    group = None if stream is None else model.values.live((client.db, words[1]), words[2])
    if group is None:
        return 0
    group.last_used_ms = model.state.steady_ms
    return sum(group.pending.pop(parse_id(i), None) is not None for i in words[3:])


# ------------------------------------------------------------------------------------ XREADGROUP


@dataclass(slots=True)
class ConsumerRead:
    """An XREADGROUP's arguments."""

    group: bytes
    consumer: bytes
    limit: int = U64_MAX
    block_ms: int | None = None
    keep: bool = True
    claim_ms: int | None = None
    is_first: bool = True  # not after a wait

    @staticmethod
    def parsed(words: Request) -> tuple[ConsumerRead, list[bytes], list[bytes]]:
        """The arguments, the names of the streams, and the start in each."""
        read, at = ConsumerRead(words[2], words[3]), 4
        while words[at] != b"STREAMS":
            if words[at] == b"COUNT":
                read.limit = int(words[at + 1]) or U64_MAX
            elif words[at] == b"BLOCK":
                read.block_ms = int(words[at + 1])
            elif words[at] == b"CLAIM":
                read.claim_ms = int(words[at + 1])
            else:
                assert words[at] == b"NOACK"
                read.keep, at = False, at - 1
            at += 2
        names = list(words[at + 1 :])
        return read, names[: len(names) // 2], names[len(names) // 2 :]

    def open(self, model: Model, key: Key) -> Group:
        stream = model.values.stream(key)
        group = None if stream is None else model.values.live(key, self.group)
        if group is None:
            raise self.no_group(key)
        return group

    def no_group(self, key: Key) -> Refused:
        return Refused(
            f"NOGROUP No such key '{key[1].decode()}' or consumer group '{self.group.decode()}' in "
            "XREADGROUP with GROUP option"
        )

    def answer(self, model: Model, keys: list[Key], starts: list[bytes]) -> Pairs | None:
        """The reply: [[key, entries], ...] of the streams with entries."""
        found = Pairs()
        claim_ms, now_ms = self.claim_ms, model.state.steady_ms
        for (number, key), start in zip(keys, starts, strict=True):
            stream = model.data.databases[number][key]
            assert isinstance(stream, Stream)
            group = stream.groups[self.group]
            group.consumers[self.consumer] = None
            if start != b">":
                claim_ms = None  # as in Redis, also for later streams
                history = self._history(stream, group, parse_id(start), now_ms)
                found.append([key, history])
                continue
            given: list[Answer] = []
            if claim_ms is not None:
                given = claims.claim_idle(model, stream, group, self.consumer, claim_ms, self.limit)
            if group.timeout_ms:
                given += self._due(stream, group, self.limit - len(given), claim_ms, now_ms)
            age = [] if claim_ms is None else [0, 0]
            new = stream.newer(group.offset)[: self.limit - len(given)]
            for entry_id in new:
                group.offset = entry_id
                if self.keep:
                    retry = (group.timeout_ms, 0) if group.timeout_ms else None
                    record = Pending(now_ms, now_ms, 1, retry, self.consumer)
                    group.pending[entry_id] = record
                    group.note(record, again=False)
            given += [[dashed(i), list(stream.entries[i]), *age] for i in new]
            if given:
                found.append([key, given])
        return found or None

    def _due(
        self, stream: Stream, group: Group, limit: int, claim_ms: int | None, now_ms: int
    ) -> list[Answer]:
        """The due entries of a managed group, which get this owner. Those that no longer exist are
        forgotten, as far as the server looks."""
        given: list[Answer] = []
        for entry_id in group.due(now_ms, self.is_first):
            if len(given) == limit:
                break
            if entry_id not in stream.entries:
                del group.pending[entry_id]
                continue
            record = group.pending[entry_id]
            age = [] if claim_ms is None else [claims.idle_ms(record, now_ms), record.deliveries]
            given.append([dashed(entry_id), list(stream.entries[entry_id]), *age])
            if not self.keep:
                del group.pending[entry_id]
                continue
            group.take(entry_id, self.consumer, now_ms, (group.timeout_ms, 0))
            group.note(record)
        return given

    def _history(self, stream: Stream, group: Group, after: EntryId, now_ms: int) -> list[Answer]:
        """A consumer's own pending entries, each delivered again."""
        reply: list[Answer] = []
        own = [i for i in group.owned_by(self.consumer) if i > after]
        for entry_id in sorted(own)[: self.limit]:
            if entry_id not in stream.entries:
                reply.append([dashed(entry_id), NULL_ARRAY])
                continue
            if not group.timeout_ms:
                group.redeliver(entry_id, now_ms, None)
                group.note(group.pending[entry_id])
            reply.append([dashed(entry_id), list(stream.entries[entry_id])])
        return reply


class ConsumerWait(Waiter):
    """A blocked XREADGROUP. It ends with an error if one of its groups was deleted, even if created
    again."""

    def __init__(
        self, model: Model, client: ClientModel, words: Request, read: ConsumerRead, keys: list[Key]
    ) -> None:
        deadline_ms = model.state.steady_ms + read.block_ms if read.block_ms else 0
        super().__init__(client, words, keys, deadline_ms, read.group)
        self.model = model
        self.read = read

    @property
    def kind(self) -> object:
        return self.group, self.read.claim_ms

    def attempt(self) -> Answer | None:
        if self.model.state.write_error is not None:
            return None
        self.read.is_first = False
        for key in self.keys:
            if (key, self.read.group) in self.model.remade:
                raise self.read.no_group(key)
            self.read.open(self.model, key)
        return self.read.answer(self.model, self.keys, [b">"] * len(self.keys))

    def lateness(self, stream: Stream) -> str | None:
        group = stream.groups.get(self.read.group)
        if group is None:
            return "its group is gone"
        self.model.values.expire(group)
        now_ms, claim_ms, due = self.model.state.steady_ms, self.read.claim_ms, []
        if claim_ms is not None:
            due = claims.looked_at(stream, group, now_ms, claim_ms, self.read.limit)
        if group.timeout_ms:
            due += [i for i in group.due(now_ms, False) if i in stream.entries]
        return late_entries(due, stream.newer(group.offset))


@does("xreadgroup")
def xreadgroup(model: Model, client: ClientModel, words: Request) -> Answer:
    read, names, starts = ConsumerRead.parsed(words)
    keys = [(client.db, name) for name in names]
    for key in keys:
        read.open(model, key)
    answer = read.answer(model, keys, starts)
    for key in keys:
        read.open(model, key).last_used_ms = model.state.steady_ms
    if answer is not None:
        return answer
    if read.block_ms is None:
        return NULL_ARRAY
    return ConsumerWait(model, client, words, read, keys)
