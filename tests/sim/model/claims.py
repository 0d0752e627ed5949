"""Owners of pending entries: claims, releases, groups, and deletions that check references."""

from __future__ import annotations

from itertools import takewhile

from tests.sim.data import COUNT_MAX, ZERO, EntryId, Group, Pending, Stream
from tests.sim.model.answers import OK, Answer, Refused, dashed, parse_id
from tests.sim.model.clients import ClientModel, Key, Request
from tests.sim.model.model import Model, does

LOOKS_PER_CLAIM = 10
KEY_NEEDED = (
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use "
    "the MKSTREAM option to create an empty stream automatically."
)


def entry(stream: Stream, entry_id: EntryId) -> Answer:
    return [dashed(entry_id), list(stream.entries[entry_id])]


def named(model: Model, client: ClientModel, words: Request) -> tuple[Stream, Group]:
    """The stream and group that a command's first two words name."""
    stream = model.values.stream((client.db, words[1]))
    group = None if stream is None else model.values.live((client.db, words[1]), words[2])
    if stream is None or group is None:
        raise Refused(
            f"NOGROUP No such key '{words[1].decode()}' or consumer group '{words[2].decode()}'"
        )
    return stream, group


def option(words: Request, name: bytes) -> bytes | None:
    """The word after this one."""
    return words[words.index(name) + 1] if name in words else None


# ------------------------------------------------------------------------------------ claims


class Claim:
    """Entries transferred to a consumer."""

    def __init__(self, model: Model, stream: Stream, group: Group, words: Request) -> None:
        self.model, self.stream, self.group = model, stream, group
        self.consumer, self.min_idle_ms = words[3], int(words[4])
        self.just_id = b"JUSTID" in words
        self.answers: list[Answer] = []
        self.gone: list[EntryId] = []
        self.delivery_ms = model.state.steady_ms
        count = option(words, b"RETRYCOUNT")
        self.deliveries = None if count is None else int(count)
        group.consumers[self.consumer] = None

    def take(self, entry_id: EntryId) -> bool:
        """Transfer an existing entry if it has been idle long enough."""
        record = self.group.pending.get(entry_id)
        now_ms = self.model.state.steady_ms
        if record is None:
            record = Pending(self.delivery_ms, self.delivery_ms, 1, None)
            self.group.pending[entry_id] = record
        elif (
            self.min_idle_ms
            and not record.waiting
            and now_ms - min(record.last_ms, now_ms) < self.min_idle_ms
        ):
            return False
        if record.dead and self.deliveries is None:
            return False
        if self.deliveries is not None:
            record.deliveries = self.deliveries
        elif not self.just_id:
            record.deliveries = min(record.deliveries + 1, COUNT_MAX)
        retry = self.group.claimed_retry(now_ms, self.delivery_ms)
        record.take(self.consumer, self.delivery_ms, retry)
        self.group.note(record)
        self.answers.append(dashed(entry_id) if self.just_id else entry(self.stream, entry_id))
        return True

    def finish(self) -> None:
        for entry_id in self.gone:
            self.group.pending.pop(entry_id, None)
        self.group.last_used_ms = self.model.state.steady_ms


@does("xclaim")
def xclaim(model: Model, client: ClientModel, words: Request) -> Answer:
    stream, group = named(model, client, words)
    last_id = option(words, b"LASTID")
    if last_id is not None:
        group.offset = max(group.offset, parse_id(last_id))
    claim = Claim(model, stream, group, words)
    idle_ms = option(words, b"IDLE")
    if idle_ms is not None:
        claim.delivery_ms = model.state.steady_ms - int(idle_ms)
    ids = takewhile(lambda word: word[:1].isdigit(), words[5:])
    for entry_id in map(parse_id, ids):
        if entry_id not in stream.entries:
            claim.gone.append(entry_id)
        elif entry_id in group.pending or b"FORCE" in words:
            claim.take(entry_id)
    claim.finish()
    return claim.answers


@does("xautoclaim")
def xautoclaim(model: Model, client: ClientModel, words: Request) -> Answer:
    """XAUTOCLAIM key group consumer min-idle start COUNT n [JUSTID]"""
    stream, group = named(model, client, words)
    claim = Claim(model, stream, group, words)
    start, count = parse_id(words[5]), int(words[7])
    waiting = sorted(entry_id for entry_id in group.pending if entry_id >= start)
    looks = count * LOOKS_PER_CLAIM
    while waiting and count and looks:
        looks -= 1
        entry_id = waiting.pop(0)
        if group.pending[entry_id].waiting:
            continue
        if entry_id not in stream.entries:
            claim.gone.append(entry_id)
            count -= 1
        elif claim.take(entry_id):
            count -= 1
    claim.finish()
    return [dashed(waiting[0] if waiting else ZERO), claim.answers, list(map(dashed, claim.gone))]


@does("xnack")
def xnack(model: Model, client: ClientModel, words: Request) -> Answer:
    """XNACK key group SILENT|FAIL|FATAL IDS n id ... [RETRYCOUNT n] [FORCE]"""
    stream, group = named(model, client, words)
    count = option(words, b"RETRYCOUNT")
    released = 0
    for entry_id in map(parse_id, words[6 : 6 + int(words[5])]):
        record = group.pending.get(entry_id)
        if record is None and not (b"FORCE" in words and entry_id in stream.entries):
            continue
        if record is not None and record.waiting and group.timeout_ms:
            continue
        if record is None:
            record = group.pending[entry_id] = Pending(
                model.state.steady_ms, model.state.steady_ms, 0, None
            )
        if group.timeout_ms:
            if words[3] == b"FATAL" and entry_id not in stream.entries:
                del group.pending[entry_id]
                released += 1
                continue
            if count is not None and record.deliveries != int(count):
                record.deliveries = int(count)
                if words[3] == b"FATAL":
                    record.last_ms = model.state.steady_ms
            group.give_back(entry_id, model.state.steady_ms, words[3], None)
            released += 1
            continue
        if count is not None:
            record.deliveries = int(count)
        elif words[3] == b"SILENT":
            record.deliveries = max(record.deliveries - 1, 0)
        elif words[3] == b"FATAL":
            record.deliveries = COUNT_MAX
        record.owner, record.last_ms, record.order, record.waiting = b"", 0, 0, False
        released += 1
    group.last_used_ms = model.state.steady_ms
    if released:
        model.waits.mark_ready((client.db, words[1]))
    return released


def idle_ms(record: Pending, now_ms: int) -> int:
    """The idle time as shown in replies."""
    released = record.waiting or (record.last_ms == 0 and not record.owner)
    return -1 if released else max(0, now_ms - record.last_ms)


def claim_idle(
    model: Model, stream: Stream, group: Group, consumer: bytes, min_idle_ms: int, limit: int
) -> list[Answer]:
    """The entries for XREADGROUP CLAIM: those idle long enough, longest idle first."""
    now_ms, answers = model.state.steady_ms, []
    for entry_id in looked_at(stream, group, now_ms, min_idle_ms, limit):
        record = group.pending[entry_id]
        answers.append(
            [dashed(entry_id), list(stream.entries[entry_id]), idle_ms(record, now_ms),
             record.deliveries]
        )  # fmt: skip
        record.take(consumer, now_ms, group.claimed_retry(now_ms, now_ms))
        group.note(record)
        record.deliveries = min(record.deliveries + 1, COUNT_MAX)
    return answers


def looked_at(
    stream: Stream, group: Group, now_ms: int, min_idle_ms: int, limit: int
) -> list[EntryId]:
    """Up to `limit` records for a claim: those whose entries exist."""
    found = group.idle(now_ms, min_idle_ms)
    return [entry_id for entry_id in found if entry_id in stream.entries][:limit]


# ------------------------------------------------------------------------------------ groups


@does("xgroup")
def xgroup(model: Model, client: ClientModel, words: Request) -> Answer:
    key, name = words[2], words[3]
    stream = model.values.stream((client.db, key))
    if words[1] == b"CREATE":
        absent = stream is None
        stream = model.values.make((client.db, key))
        if not absent and model.values.live((client.db, key), name) is not None:
            raise Refused("BUSYGROUP Consumer Group name already exists")
        start = stream.last_id if words[4] == b"$" else parse_id(words[4])
        stream.make_group(name, start, 0, model.state.steady_ms)
        return OK
    if stream is None:
        raise Refused(KEY_NEEDED)
    group = model.values.live((client.db, key), name)
    if words[1] == b"DESTROY":
        if group is None:
            return 0
        model.values.drop_group((client.db, key), name)
        return 1
    if group is None:
        raise Refused(
            f"NOGROUP No such consumer group '{name.decode()}' for key name '{key.decode()}'"
        )
    group.last_used_ms = model.state.steady_ms
    if words[1] == b"SETID":
        group.offset = stream.last_id if words[4] == b"$" else parse_id(words[4])
        return OK
    assert words[1] == b"DELCONSUMER"
    own = [entry_id for entry_id, record in group.pending.items() if record.owner == words[4]]
    if words[4] in group.consumers:
        del group.consumers[words[4]]
        for entry_id in own:
            if group.timeout_ms:
                group.give_back(entry_id, model.state.steady_ms, b"SILENT", None)
            else:
                del group.pending[entry_id]
        if group.timeout_ms and own:
            model.waits.mark_ready((client.db, key))
    return len(own)


# ------------------------------------------------------------------------------------ deletions


def is_held(stream: Stream, entry_id: EntryId) -> bool:
    """True if a group has not read this ID yet, or has it pending."""
    return any(group.holds(entry_id) for group in stream.groups.values())


def delete_each(stream: Stream, policy: bytes, ids: list[EntryId]) -> list[int]:
    if policy == b"DELREF":
        for group in stream.groups.values():
            group.forget(ids)
    answers = []
    for entry_id in ids:
        if policy == b"ACKED" and is_held(stream, entry_id):
            answers.append(2)
        else:
            answers.append(1 if stream.delete(entry_id) else -1)
    return answers


def settle(model: Model, key: Key, stream: Stream) -> None:
    for name in list(stream.groups):
        model.values.live(key, name)


@does("xdelex")
def xdelex(model: Model, client: ClientModel, words: Request) -> Answer:
    """XDELEX key KEEPREF|DELREF|ACKED IDS n id ..."""
    ids = [parse_id(word) for word in words[5:]]
    stream = model.values.stream((client.db, words[1]))
    if stream is None:
        return [-1] * len(ids)
    if words[2] != b"KEEPREF":
        settle(model, (client.db, words[1]), stream)
    return delete_each(stream, words[2], ids)


@does("xackdel")
def xackdel(model: Model, client: ClientModel, words: Request) -> Answer:
    """XACKDEL key group KEEPREF|DELREF|ACKED IDS n id ..."""
    ids = [parse_id(word) for word in words[6:]]
    stream = model.values.stream((client.db, words[1]))
    group = None if stream is None else model.values.live((client.db, words[1]), words[2])
    if stream is None or group is None:
        return [-1] * len(ids)
    if words[3] != b"KEEPREF":
        settle(model, (client.db, words[1]), stream)
    acked = [entry_id for entry_id in ids if group.pending.pop(entry_id, None) is not None]
    deleted = delete_each(stream, words[3], acked)
    # An acknowledged entry that does not exist also gives 1.
    answers = {i: 1 if answer == -1 else answer for i, answer in zip(acked, deleted, strict=True)}
    group.last_used_ms = model.state.steady_ms
    return [answers.pop(entry_id, -1) for entry_id in ids]


def trim(model: Model, key: Key, stream: Stream, words: Request) -> int:
    """XADD's and XTRIM's options: MAXLEN n or MINID id, with DELREF, and MINID with ACKED."""
    ids = list(stream.entries)
    keep, first_kept = option(words, b"MAXLEN"), option(words, b"MINID")
    if keep is not None:
        gone = ids[: max(0, len(ids) - int(keep))]
    else:
        assert first_kept is not None
        gone = [entry_id for entry_id in ids if entry_id < parse_id(first_kept)]
    if b"ACKED" in words and stream.groups:
        settle(model, key, stream)
        gone = [entry_id for entry_id in gone if not is_held(stream, entry_id)]
    if b"DELREF" in words:
        for group in stream.groups.values():
            for entry_id in gone:
                group.pending.pop(entry_id, None)
    return model.log.evict(key, stream, gone)


@does("xtrim")
def xtrim(model: Model, client: ClientModel, words: Request) -> Answer:
    stream = model.values.stream((client.db, words[1]))
    return 0 if stream is None else trim(model, (client.db, words[1]), stream, words)
