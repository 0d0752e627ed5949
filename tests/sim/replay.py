"""An independent implementation that applies effects to plain data and checks each of them.

It shares no code with the server's own application of effects, so a recovered server can be
compared with exactly the durable effects. Effects are the server's history in order, so this module
also checks the promises about order: IDs increase, offsets never go back, a retry is never early,
no expired entry is delivered.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Iterator

from tests.sim.data import Data, Stream
from tests.sim.group_replay import GroupReplay
from tests.sim.promises import demand, id_of

COUNTER = b"count"  # keys with this prefix count transactions
HALVES = b"<", b">"  # two keys with these prefixes and the same rest are a pair


# The codes of effects, as in docs/formats.md.
CODES = dict(
    enumerate(
        b"""
        - HISTORY TIME SELECT STREAM APPEND APPENDONCE PRODUCERDROP EVICT POLICY EVICTIDS XDEL
        RESERVE COMPLETE ABORT LEASE SEAL PARENTS FOLLOW CLOCK SETID IDMPSET IDMP IDMPREPEAT
        GROUP GROUPTTL GROUPSETID GROUPDROP CONSUMER CONSUMERDROP DELIVER REDELIVER CLAIM
        RELEASE ACK SEEN SET UPDATE EXTEND PATCH PADDED EXPIRE - DEL RENAME COPY RESTORE
        TRESTORE SWAPDB FLUSHDB FLUSHALL GROUPRULES TAKE WAIT DEADLINE DEAD COPIED
        SCHEDULE UNSCHEDULE FIRE XDELRANGE - PICK
        IMPORT LEAVE STAY OWN DROPSLOTS FLUSHSLOTS STREAMS KEYPART
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


def slot_of(key: bytes) -> int:
    """The slot of a key in a cluster."""
    _, _, rest = key.partition(b"{")
    tag, end, _ = rest.partition(b"}")
    return crc_hqx(tag if tag and end else key, 0) & 16383


class Replay(GroupReplay):
    """Plain data that effects are applied to."""

    def __init__(self, data: Data) -> None:
        super().__init__(data)
        self._moves: dict[bytes, set[int]] = {}  # the slots that arrive, or have left

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
        self._judge_copies()

    def _apply_history(self, name: bytes, seq: bytes) -> None:
        """It has no information about the data."""

    # Slots that move

    def _apply_import(self, move: bytes, slots: bytes, *words: bytes) -> None:
        ends = [part.split(b"-") for part in slots.split(b",")]
        found = {slot for end in ends for slot in range(int(end[0]), int(end[-1]) + 1)}
        others = [other for name, other in self._moves.items() if name != move]
        demand(found.isdisjoint(set().union(*others)), f"slots {slots!r} in two moves")
        self._moves[move] = found

    _apply_leave = _apply_import

    def _apply_own(self, move: bytes, epoch: bytes = b"") -> None:
        demand(self._moves.pop(move, None), f"the move {move!r} is not known")

    _apply_stay = _apply_own

    def _apply_dropslots(self, move: bytes, epoch: bytes) -> None:
        slots = self._moves.pop(move)
        for key in list(self.data.databases[0]):
            if slot_of(key) in slots:
                self.data.drop(0, key)

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
        self._note_copy(words)

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
        self._judge_policy(key, stream, gone)
        stream.evict(gone)

    def _apply_policy(
        self, key: bytes, length: bytes, age_ms: bytes, size: bytes, how: bytes, *more: bytes
    ) -> None:
        limits, others = (int(length), int(age_ms), int(size)), tuple(map(int, more))
        demand(how in (b"exact", b"approx"), f"{key!r}: POLICY {how!r}")
        is_set = any(limits) or others
        self._stream(key).policy = (*limits, how == b"exact", *others) if is_set else None

    def _apply_xdel(self, key: bytes, *texts: bytes) -> None:
        self._judge_policy(key, self._stream(key), list(map(id_of, texts)))
        for text in texts:
            demand(self._stream(key).delete(id_of(text)), f"{key!r}: XDEL of missing {text!r}")

    def _apply_xdelrange(self, key: bytes, first: bytes, last: bytes) -> None:
        stream = self._stream(key)
        gone = [i for i in stream.entries if id_of(first) <= i <= id_of(last)]
        self._judge_policy(key, stream, gone)
        for entry_id in gone:
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
