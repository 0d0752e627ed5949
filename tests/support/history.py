"""Records the requests and replies of clients, and checks that the remaining data agrees with them.

A `History` records every request when it is sent and every reply when it arrives, from many clients
in one order. It does not model the server. It checks only the promises of replies:

* an acknowledged append exists once, with its fields, unless a request may have removed it; nothing
  exists that was not requested; IDs increase in the order of the replies;
* a producer's number gets one reply with an ID, and afterwards neither it nor a lower number does;
* entries that a trim or deletion with a reply removed do not reappear;
* an acknowledged entry stays acknowledged and is not delivered again; a group's position never goes
  back; a group delivers each entry to one client, and again only as a due retry or a claim;
* an entry that was delivered for acknowledgement, and not acknowledged, is still pending;
* a string has the value of a SET that no later SET with a reply replaced.

A request without a reply (its client or the server died) may have been executed or not. Where a
promise is hard to state, it is weakened: a key that was deleted or overwritten starts a new
history, and a group that was moved or destroyed promises nothing. Therefore every reported
violation is a fault of the server.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tests.support.resp import Error, Map, Reply

EntryId = tuple[int, int]
Key = tuple[int, bytes]
Words = tuple[bytes, ...]
ZERO: EntryId = (0, 0)
# Requests that replace the values at the keys they name: (first key, keys) or all keys.
REPLACES = {b"DEL": 9999, b"UNLINK": 9999, b"RENAME": 2, b"RENAMENX": 2, b"MOVE": 1, b"COPY": 2,
            b"XSETID": 1, b"TPOLICY": 1, b"APPEND": 1, b"INCR": 1, b"GETDEL": 1,
            b"SET": 1}  # fmt: skip
EXPIRES = {b"EXPIRE", b"PEXPIRE", b"EXPIREAT", b"PEXPIREAT", b"GETEX"}
APPENDS = {b"TAPPEND", b"TAPPENDONCE", b"TAPPEV", b"XADD"}
CHANGES = APPENDS | {b"XTRIM", b"XDEL", b"XDELEX", b"XACKDEL", b"TACK", b"XACK", b"XCLAIM",
                     b"XAUTOCLAIM", b"XNACK"}  # fmt: skip
COMES_FROM_ELSEWHERE = {b"RENAME", b"RENAMENX", b"MOVE", b"COPY", b"SWAPDB"}
REPLACES_ALL = {b"FLUSHDB", b"FLUSHALL", b"SWAPDB"}


class BrokenHistory(AssertionError):
    """A reply whose promise was broken."""


@dataclass(slots=True)
class Operation:
    """A request; `asked` and `ended` are positions in the order of all events."""

    db: int
    words: Words
    asked: int
    asked_ms: int
    ended: int | None = None
    ended_ms: int = 0


@dataclass(slots=True)
class FoundGroup:
    offset: EntryId
    pending: set[EntryId]


@dataclass(slots=True)
class FoundStream:
    """The contents of a stream: its entries in the order in which they were read."""

    entries: list[tuple[EntryId, Words]]
    groups: dict[bytes, FoundGroup] = field(default_factory=dict)


Found = Mapping[Key, FoundStream | bytes]


class Ends:
    """The largest ID of the operations that ended before a position in the order."""

    def __init__(self) -> None:
        self._places: list[int] = []
        self._ids: list[EntryId] = []

    def add(self, place: int, entry_id: EntryId) -> None:
        self._places.append(place)
        self._ids.append(max(entry_id, self._ids[-1]) if self._ids else entry_id)

    def greatest_before(self, place: int) -> EntryId:
        at = bisect.bisect_left(self._places, place)
        return self._ids[at - 1] if at else ZERO


class Numbers:
    """The largest number of a producer with an ID as reply before a position in the order."""

    def __init__(self) -> None:
        self._ends = Ends()

    def add(self, place: int, number: int) -> None:
        self._ends.add(place, (number + 1, 0))

    def greatest_before(self, place: int) -> int:
        """-1 for none."""
        return self._ends.greatest_before(place)[0] - 1


class GroupHistory:
    def __init__(self) -> None:
        self.given: dict[EntryId, tuple[int, int]] = {}  # to the times of request and reply, ms
        self.kept: set[EntryId] = set()  # delivered for acknowledgement
        self.new = Ends()
        self.newest = ZERO
        self.acked: dict[EntryId, int] = {}  # to the position of the reply
        self.maybe_acked: set[EntryId] = set()
        self.least_retry_ms: int | None = None
        self.reads_unanswered: dict[int, Operation] = {}
        self.moved = False  # its position or pending entries were changed in another way


class StreamHistory:
    """The replies about a key since its stream may last have been replaced."""

    def __init__(self, began: int = 0) -> None:
        self.began = began
        self.is_foreign = False  # it came from another key, with unknown groups
        self.open: set[int] = set()  # requests without a reply
        self.acked: dict[EntryId, tuple[Words, int]] = {}
        self.unanswered = 0
        self.ends = Ends()
        self.gone: set[EntryId] = set()
        self.maybe_gone: set[EntryId] = set()
        self.maybe_below = ZERO
        self.maybe_all_but: int | None = None
        self.maybe_anything = False
        self.groups: dict[bytes, GroupHistory] = {}
        self.numbers: dict[bytes, Numbers] = {}  # of each producer

    def group(self, name: bytes) -> GroupHistory:
        group = self.groups.setdefault(name, GroupHistory())
        group.moved |= self.is_foreign
        return group

    def begun_anew(self, place: int) -> StreamHistory:
        """A new history: no promise remains, but earlier requests without a reply may still run."""
        stream = StreamHistory(place)
        stream.open = self.open
        stream.unanswered = self.unanswered
        if self.open:
            stream.maybe_gone, stream.maybe_below = self.maybe_gone, self.maybe_below
            stream.maybe_all_but, stream.maybe_anything = self.maybe_all_but, self.maybe_anything
        for name, group in self.groups.items():
            if group.reads_unanswered or (self.open and group.moved):
                stream.group(name).moved = True
        return stream


class History:
    """See the module's docstring."""

    def __init__(
        self,
        retries_are_timed: bool = True,
        owned_renames: bool = False,
        checks_strings: bool = True,
        keeps_producers: bool = True,
    ) -> None:
        """`retries_are_timed`: the clock of `now_ms` also times retries and does not jump.
        `owned_renames`: only its sender uses the keys of a RENAME, so a RENAME does not reset their
        history. `checks_strings`: strings are changed only by SET. `keeps_producers`: there are
        never enough producers that one is removed."""
        self._place = 0
        self._streams: dict[Key, StreamHistory] = {}
        self._asked: Counter[Words] = Counter()  # fields of the entries that may exist at any key
        self._numbered: set[tuple[int, Words]] = set()  # requested once or more, exist at most once
        self._tearing: dict[int, Operation] = {}  # requested, and executed at an unknown time
        self._expiring: set[Key] = set()  # keys that may disappear at any time
        self._sets: dict[Key, list[Operation]] = {}
        self._other: set[Key] = set()  # strings changed by more than SET
        self._renames: list[Operation] = []
        self._checks_strings = checks_strings
        self._keeps_producers = keeps_producers
        self._retries_are_timed = retries_are_timed
        self._owned_renames = owned_renames
        self.answered = 0

    # Events

    def ask(self, db: int, words: Iterable[bytes], now_ms: int) -> Operation:
        """A request is sent."""
        self._place += 1
        words = tuple(words)
        operation = Operation(db, (words[0].upper(), *words[1:]), self._place, now_ms)
        self._note_asked(operation)
        return operation

    def answer(self, operation: Operation, reply: Reply, now_ms: int) -> None:
        """The reply has arrived; from now on no crash may undo what it confirms."""
        self._place += 1
        operation.ended, operation.ended_ms = self._place, now_ms
        self.answered += 1
        if self._tearing.pop(operation.asked, None) is not None:
            self._tear(operation)
        if operation.words[0] == b"TAPPENDMANY":
            return  # the number of appended entries does not show which ones were appended
        place = 2 if operation.words[0] == b"XGROUP" else 1
        key = operation.db, operation.words[min(place, len(operation.words) - 1)]
        stream = self._streams.get(key)
        if stream is not None:
            stream.open.discard(operation.asked)
            if operation.asked < stream.began:
                return
        if key in self._expiring:
            return
        judge = _JUDGES.get(operation.words[0])
        if judge is not None:
            judge(self, operation, reply)

    def _stream(self, db: int, key: bytes) -> StreamHistory:
        return self._streams.setdefault((db, key), StreamHistory())

    def _note_asked(self, operation: Operation) -> None:
        words, db = operation.words, operation.db
        name = words[0]
        if name == b"RENAME" and self._owned_renames:
            self._renames.append(operation)
        elif name in REPLACES or name in REPLACES_ALL:
            self._tearing[operation.asked] = operation
            self._tear(operation)
            if name == b"SET":
                self._sets.setdefault((db, words[1]), []).append(operation)
        elif name in EXPIRES:
            self._expiring.add((db, words[1]))
        elif name in (b"TREAD", b"XREADGROUP"):
            for _, group in self._read_groups(operation):
                group.reads_unanswered[operation.asked] = operation
                self._note_retry(group, words)
        elif name == b"TSCHEDULE":
            self._asked[words[5:]] += 1
        elif name == b"XGROUP":
            stream = self._stream(db, words[2])
            stream.open.add(operation.asked)
            if words[1].upper() in (b"DESTROY", b"SETID", b"DELCONSUMER"):
                stream.group(words[3]).moved = True
        elif name == b"TAPPENDMANY":
            for single in singly(words):
                self._note_entry(self._stream(db, single[1]), db, single)
        elif name in CHANGES:
            stream = self._stream(db, words[1])
            stream.open.add(operation.asked)
            self._note_change(stream, db, words)

    def _tear(self, operation: Operation) -> None:
        """At some time since the request, the values at its keys were replaced."""
        name, *keys = operation.words
        if name in REPLACES_ALL:
            self._checks_strings = False
            torn = list(self._streams)
        else:
            torn = [(operation.db, key) for key in keys[: REPLACES[name]]]
        if (name == b"SET" and len(keys) > 2) or name == b"TPOLICY":
            self._expiring.update(torn)  # with a policy, entries may be evicted at any time
        elif name != b"SET":
            self._other.update(torn)
            if not self._expiring.isdisjoint(torn):
                self._expiring.update(torn)  # the expiry may have moved with the key
        for key in torn:
            if key in self._streams or name in COMES_FROM_ELSEWHERE:
                stream = self._stream(*key).begun_anew(self._place)
                stream.is_foreign = name in COMES_FROM_ELSEWHERE
                self._streams[key] = stream

    def _is_numbered(self, words: Words) -> bool:
        """True if this request is appended only once even if it is sent repeatedly."""
        return (
            self._keeps_producers and words[0] == b"TAPPENDONCE" and words[2].upper() == b"PRODUCER"
        )

    def _note_change(self, stream: StreamHistory, db: int, words: Words) -> None:
        name = words[0]
        if name in APPENDS:
            self._note_entry(stream, db, words)
            stream.maybe_anything |= b"IDMP" in words
        if name in (b"TAPPEV", b"XADD", b"XTRIM"):
            self._note_trim(stream, words)
        elif name in (b"XDEL", b"XDELEX", b"XACKDEL"):
            stream.maybe_gone |= set(named_ids(words))
        if name in (b"TACK", b"XACK", b"XACKDEL"):
            stream.group(words[2]).maybe_acked |= set(named_ids(words))
        elif name == b"XNACK" or b"FORCE" in words or b"LASTID" in words:
            stream.group(words[2]).moved = True
        if b"DELREF" in words:
            for group in stream.groups.values():
                group.moved = True

    def _note_entry(self, stream: StreamHistory, db: int, words: Words) -> None:
        fields = appended(words)
        if fields:
            self._asked[fields] += (db, words) not in self._numbered
            stream.unanswered += 1
        if self._is_numbered(words):
            self._numbered.add((db, words))

    def _note_trim(self, stream: StreamHistory, words: Words) -> None:
        least = trim_bound(words)
        if least is None:
            return
        kind, value = least
        if kind == b"MINID":
            stream.maybe_below = max(stream.maybe_below, parse_id(value))
        elif kind in (b"MAXLEN", b"COUNT"):
            before = stream.maybe_all_but
            stream.maybe_all_but = int(value) if before is None else min(before, int(value))
        else:
            stream.maybe_anything = True

    def _read_groups(self, operation: Operation) -> list[tuple[bytes, GroupHistory]]:
        """(key, group) of each group that a read uses."""
        words, db = operation.words, operation.db
        if words[0] == b"TREAD":
            if b"GROUP" not in words:
                return []
            name = words[words.index(b"GROUP") + 1]
            return [(words[1], self._stream(db, words[1]).group(name))]
        keys = words[words.index(b"STREAMS") + 1 :]
        return [(key, self._stream(db, key).group(words[2])) for key in keys[: len(keys) // 2]]

    # The promises of replies

    def _judge_append(self, operation: Operation, reply: Reply) -> None:
        words = operation.words
        stream = self._stream(operation.db, words[1])
        fields = appended(words)
        if not fields:
            self._judge_trim(operation, reply)
            return
        stream.unanswered -= 1
        if not isinstance(reply, bytes):
            self._asked[fields] -= not self._is_numbered(words)
            return
        if b"IDMP" in words:
            return
        assert operation.ended is not None
        entry_id = parse_id(reply)
        before = stream.ends.greatest_before(operation.asked)
        _demand(entry_id > before, operation, f"got {entry_id}, and {before} was there before it")
        _demand(entry_id not in stream.acked, operation, f"got {entry_id}, which another one has")
        self._judge_number(stream, operation)
        stream.acked[entry_id] = fields, operation.ended
        stream.ends.add(operation.ended, entry_id)
        self._trimmed(stream, operation, entry_id)

    def _judge_number(self, stream: StreamHistory, operation: Operation) -> None:
        """Check TAPPENDONCE key PRODUCER name number ... with an ID as reply."""
        words = operation.words
        if not self._is_numbered(words):
            return
        assert operation.ended is not None
        numbers = stream.numbers.setdefault(words[3], Numbers())
        before = numbers.greatest_before(operation.asked)
        _demand(int(words[4]) > before, operation, f"is appended, and {before} was before it")
        numbers.add(operation.ended, int(words[4]))

    def _judge_trim(self, operation: Operation, reply: Reply) -> None:
        if isinstance(reply, int):
            self._trimmed(self._stream(operation.db, operation.words[1]), operation, None)

    def _trimmed(self, stream: StreamHistory, operation: Operation, own: EntryId | None) -> None:
        """Record the entries, confirmed before the trim was requested, that the trim removed."""
        words = operation.words
        bound = trim_bound(words)
        if bound is None or b"~" in words or b"ACKED" in words:
            return
        ids = sorted(i for i, (_, ended) in stream.acked.items() if ended < operation.asked)
        if own is not None:
            ids.append(own)
        kind, value = bound
        if kind == b"MINID":
            stream.gone.update(i for i in ids if i < parse_id(value))
        elif kind in (b"MAXLEN", b"COUNT"):
            sure = [i for i in ids if i not in stream.maybe_gone]
            keep = int(value)
            if not keep:
                stream.gone.update(ids)
            elif len(sure) >= keep:
                stream.gone.update(i for i in ids if i < sure[-keep])

    def _judge_delete(self, operation: Operation, reply: Reply) -> None:
        ids = named_ids(operation.words)
        if reply == len(set(ids)):
            self._stream(operation.db, operation.words[1]).gone.update(ids)

    def _judge_ack(self, operation: Operation, reply: Reply) -> None:
        words = operation.words
        group = self._stream(operation.db, words[1]).group(words[2])
        ids = set(named_ids(words))
        if reply != len(ids) or group.moved:
            return
        assert operation.ended is not None
        for entry_id in ids:
            at = group.acked.get(entry_id)
            _demand(at is None, operation, f"acknowledged {entry_id} a second time")
            group.acked[entry_id] = operation.ended

    def _judge_read(self, operation: Operation, reply: Reply) -> None:
        read = self._read_groups(operation)
        groups = dict(read)
        if len(groups) < len(read):  # a key named twice: the parts of the reply are ambiguous
            for group in groups.values():
                group.moved = True
        for group in groups.values():
            group.moved |= group.reads_unanswered.pop(operation.asked, None) is None
        if isinstance(reply, Error):
            return
        for key, entry_id in delivered(operation.words, reply):
            if (operation.db, key) not in self._expiring:
                self._judge_delivery(groups[key], operation, entry_id)

    def _note_retry(self, group: GroupHistory, words: Words) -> None:
        if b"RETRY" in words:
            at = words.index(b"RETRY")
            retry_ms = int(words[at + 1])
            before = group.least_retry_ms
            group.least_retry_ms = retry_ms if before is None else min(before, retry_ms)
            if int(words[at + 2]):
                group.moved = True  # they expire
        if b"CLAIM" in words or (b"GROUP" in words and words[0] == b"TREAD" and _ttl_ms(words)):
            group.moved = True

    def _judge_delivery(self, group: GroupHistory, operation: Operation, entry_id: EntryId) -> None:
        acked = group.acked.get(entry_id)
        if group.moved:
            return
        _demand(
            acked is None or acked > operation.asked,
            operation,
            f"got {entry_id}, which was acknowledged before",
        )
        assert operation.ended is not None
        last = group.given.get(entry_id)
        if last is not None:
            retry_ms = group.least_retry_ms
            _demand(retry_ms is not None, operation, f"got {entry_id}, which another client has")
            assert retry_ms is not None
            # The order of the two is unknown, because a client may report its reply late.
            passed_ms = max(last[1], operation.ended_ms) - min(last[0], operation.asked_ms)
            if self._retries_are_timed:
                text = f"got {entry_id} twice within {passed_ms} of {retry_ms} ms"
                _demand(passed_ms >= retry_ms, operation, text)
        elif entry_id > group.new.greatest_before(operation.asked):
            group.new.add(operation.ended, entry_id)
            group.newest = max(group.newest, entry_id)
        else:  # a retry of a delivery to a client that died before reporting it
            lost = any(read.asked < operation.asked for read in group.reads_unanswered.values())
            text = f"got {entry_id} after {group.new.greatest_before(operation.asked)}"
            _demand(lost and group.least_retry_ms is not None, operation, text)
        group.given[entry_id] = operation.asked_ms, operation.ended_ms
        words = operation.words
        if b"RETRY" in words or (words[0] == b"XREADGROUP" and b"NOACK" not in words):
            group.kept.add(entry_id)

    def _judge_claim(self, operation: Operation, reply: Reply) -> None:
        words = operation.words
        group = self._stream(operation.db, words[1]).group(words[2])
        if group.moved or isinstance(reply, Error):
            return
        for entry_id in claimed(words, reply):
            acked = group.acked.get(entry_id)
            text = f"got {entry_id}, which was acknowledged before"
            _demand(acked is None or acked > operation.asked, operation, text)

    def _judge_rename(self, operation: Operation, reply: Reply) -> None:
        if self._owned_renames:
            self._renames.remove(operation)
            if not isinstance(reply, Error):
                self._move(operation)

    def _move(self, operation: Operation) -> None:
        db, (_, old, new) = operation.db, operation.words
        for kept in (self._streams, self._sets):
            kept.pop((db, new), None)  # type: ignore[attr-defined]
            if (db, old) in kept:
                kept[db, new] = kept.pop((db, old))  # type: ignore[attr-defined]

    # The remaining data

    def check(self, found: Found) -> None:
        """BrokenHistory unless this data agrees with the replies."""
        for operation in self._tearing.values():
            self._tear(operation)
        self._tearing.clear()
        for operation in self._renames:
            db, (_, old, new) = operation.db, operation.words
            if (db, new) in found and (db, old) not in found:
                self._move(operation)
        self._renames.clear()
        for key, stream in self._streams.items():
            if key in self._expiring:
                continue
            there = found.get(key)
            if isinstance(there, FoundStream):
                self._check_stream(key, stream, there)
            else:
                _demand(not stream.acked, key, f"is {there!r} and no stream")
        for key in self._sets:
            if self._checks_strings and key not in self._other | self._expiring:
                self._check_string(key, found.get(key))

    def _check_stream(self, key: Key, stream: StreamHistory, found: FoundStream) -> None:
        ids = [entry_id for entry_id, _ in found.entries]
        _demand(ids == sorted(set(ids)), key, "holds ids that do not rise")
        there = dict(found.entries)
        for fields, count in Counter(there.values()).items():
            text = f"holds {count} entries {fields!r}; {self._asked[fields]} were asked for"
            _demand(count <= self._asked[fields], key, text)
        for entry_id in stream.gone:
            _demand(entry_id not in there, key, f"holds {entry_id}, which was removed")
        self._check_acked(key, stream, there)
        for name, group in stream.groups.items():
            if not group.moved:
                self._check_group((*key, name), stream, group, found.groups.get(name), there)

    @staticmethod
    def _check_acked(key: Key, stream: StreamHistory, there: dict[EntryId, Words]) -> None:
        known = sorted(stream.acked)
        for index, entry_id in enumerate(known):
            fields, _ = stream.acked[entry_id]
            if entry_id in there:
                text = f"holds {there[entry_id]!r} at {entry_id} and not {fields!r}"
                _demand(there[entry_id] == fields, key, text)
                continue
            above = len(known) - index - 1 + stream.unanswered
            _demand(
                entry_id in stream.maybe_gone
                or entry_id < stream.maybe_below
                or (stream.maybe_all_but is not None and above >= stream.maybe_all_but)
                or stream.maybe_anything,
                key,
                f"lost {entry_id} {fields!r}, which was acknowledged",
            )

    @staticmethod
    def _check_group(
        place: tuple[int, bytes, bytes],
        stream: StreamHistory,
        group: GroupHistory,
        found: FoundGroup | None,
        there: dict[EntryId, Words],
    ) -> None:
        if found is None:
            _demand(not group.given, place, "is gone, and entries were given out")
            return
        text = f"stands at {found.offset}, and {group.newest} was given out"
        _demand(found.offset >= group.newest, place, text)
        for entry_id in group.acked:
            _demand(entry_id not in found.pending, place, f"has {entry_id}, acknowledged, pending")
        lost = group.kept - found.pending - group.maybe_acked - stream.maybe_gone
        lost = {entry_id for entry_id in lost if entry_id in there}
        _demand(not lost, place, f"does not have {sorted(lost)[:5]} pending any more")

    def _check_string(self, key: Key, value: FoundStream | bytes | None) -> None:
        """Check that the value is that of a SET that may have been the last one."""
        sets = self._sets[key]
        last_asked = max((one.asked for one in sets if one.ended is not None), default=0)
        if not last_asked and value is None:
            return
        possible = [one for one in sets if one.ended is None or one.ended > last_asked]
        values = [one.words[2] for one in possible]
        _demand(value in values, key, f"is {value!r}; the last SETs were {values[-5:]}")


_Judge = Callable[[History, Operation, Reply], None]
_JUDGES: dict[bytes, _Judge] = {
    b"TAPPEND": History._judge_append,
    b"TAPPENDONCE": History._judge_append,
    b"TAPPEV": History._judge_append,
    b"XADD": History._judge_append,
    b"XTRIM": History._judge_trim,
    b"XDEL": History._judge_delete,
    b"TACK": History._judge_ack,
    b"XACK": History._judge_ack,
    b"TREAD": History._judge_read,
    b"XREADGROUP": History._judge_read,
    b"XCLAIM": History._judge_claim,
    b"XAUTOCLAIM": History._judge_claim,
    b"RENAME": History._judge_rename,
}


def _demand(holds: bool, what: Operation | tuple[object, ...], text: str) -> None:
    if not holds:
        name = b" ".join(what.words) if isinstance(what, Operation) else what
        raise BrokenHistory(f"{name!r} {text}")


# ------------------------------------------------------------------------------ words and replies


def parse_id(text: bytes) -> EntryId:
    ms, _, seq = text.replace(b".", b"-").partition(b"-")
    return int(ms), int(seq or 0)


def singly(words: Words) -> Iterator[Words]:
    """The entries of a TAPPENDMANY, each as a TAPPENDONCE."""
    first = 2 + int(words[1])
    how = words[first : first + (1 if words[first].upper() == b"ID" else 2)]
    at = first + len(how)
    for key in words[2:first]:
        entries, at = int(words[at]), at + 1
        for _ in range(entries):
            end = at + 2 + 2 * int(words[at + 1])
            yield b"TAPPENDONCE", key, *how, words[at], *words[at + 2 : end]
            at = end


def appended(words: Words) -> Words:
    """The fields and values of an appending request."""
    if words[0] == b"TAPPEND":
        return words[2:]
    if words[0] == b"TAPPEV":
        return words[4:]
    if words[0] == b"TAPPENDONCE":
        return words[4 if words[2].upper() == b"ID" else 5 :]
    at = 2
    while at < len(words):
        word = words[at].upper()
        if word in (b"MAXLEN", b"MINID"):
            at += 3 if words[at + 1] in (b"=", b"~") else 2
        elif word == b"LIMIT":
            at += 2
        elif word == b"IDMP":
            at += 3
        elif word in (b"NOMKSTREAM", b"KEEPREF", b"DELREF", b"ACKED"):
            at += 1
        else:
            return words[at + 1 :]
    return ()


def trim_bound(words: Words) -> tuple[bytes, bytes] | None:
    """The bound of a trim: MAXLEN, MINID, COUNT or TIME, and the value."""
    if words[0] == b"TAPPEV":
        return words[2].upper(), words[3]
    options = words[2 : len(words) - len(appended(words))] if words[0] == b"XADD" else words[2:]
    for at, word in enumerate(options):
        if word.upper() in (b"MAXLEN", b"MINID"):
            value = options[at + 1]
            return word.upper(), options[at + 2] if value in (b"=", b"~") else value
    return None


def named_ids(words: Words) -> list[EntryId]:
    """The IDs in a deletion or acknowledgement."""
    if b"IDS" in words:
        return [parse_id(word) for word in words[words.index(b"IDS") + 2 :]]
    return [parse_id(word) for word in words[2 if words[0] == b"XDEL" else 3 :]]


def _ttl_ms(words: Words) -> int:
    return int(words[words.index(b"GROUP") + 2])


def delivered(words: Words, reply: Reply) -> list[tuple[bytes, EntryId]]:
    """(key, ID) of the entries that a group read delivered."""
    if words[0] == b"TREAD":
        if b"GROUP" not in words or not isinstance(reply, list):
            return []
        entries = reply[1 if b"WITHINFO" in words else 0 :]
        return [(words[1], _entry_id(entry)) for entry in entries if isinstance(entry, list)]
    keys = words[words.index(b"STREAMS") + 1 :]
    asked = dict(zip(keys, keys[len(keys) // 2 :], strict=False))
    pairs = reply.pairs if isinstance(reply, Map) else reply if isinstance(reply, list) else []
    return [
        (key, _entry_id(entry))
        for key, entries in pairs  # type: ignore[misc]
        if asked[key] == b">"  # type: ignore[index]
        for entry in entries  # type: ignore[union-attr]
    ]


def claimed(words: Words, reply: Reply) -> list[EntryId]:
    """The IDs that a claim transferred."""
    assert isinstance(reply, list)
    entries = reply[1] if words[0] == b"XAUTOCLAIM" else reply
    assert isinstance(entries, list)
    return [_entry_id(entry) for entry in entries if isinstance(entry, list | bytes)]


def _entry_id(entry: Reply) -> EntryId:
    first = entry[0] if isinstance(entry, list) else entry
    assert isinstance(first, bytes)
    return parse_id(first)
