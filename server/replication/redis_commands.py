"""Effects as commands of Redis 7.0, for its replicas.

A frame is translated in the turn in which it is recorded, with the keyspace after it. An effect
with all its words becomes the same command. An effect on pending entries names them; their owners,
times and numbers of deliveries are those after the frame, which is applied as a whole. A key that
has no such translation is sent as it is after the frame (RESTORE).

Frames that have only frequent effects are translated by `frequent_effects`, which is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from millstream.clock_offset import shifted_ms
from millstream.commands.runtime.effects import split_effects
from millstream.ids import parse
from millstream.server.replication.frequent_effects import FrequentEffects
from millstream.server.replication.link_words import encode_request
from millstream.storage.dump.rdb import UNOWNED, StreamDump, StringDump, footer
from millstream.storage.dump.rdb_bytes import crc64
from millstream.storage.dump.stream_reading import STREAM_2
from millstream.storage.groups.group import Group
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream

if TYPE_CHECKING:
    from millstream.storage.groups.pending_list import Row

Words = list[bytes]
Place = tuple[int, bytes]  # database and key
EntryId = tuple[int, int]

_IDS_MAX = 1000  # in one command
# Of the whole stream that is sent for a pending entry that is not in it any more: 2 ms.
_ENTRIES_MAX = 1000
# An empty stream is made with a group, which is removed again.
_NO_GROUP = b"millstream"

# What Redis has no place for; its replica shows the entries and groups without it.
LEFT_OUT = frozenset(
    b"""
    HISTORY TIME CLOCK SOURCE DROPPED KNOWN
    PRODUCERDROP POLICY RESERVE LEASE SEAL PARENTS FOLLOW SCHEDULE UNSCHEDULE
    IDMPSET IDMP IDMPREPEAT GROUPTTL GROUPRULES DEADLINE COPIED SEEN
    IMPORT LEAVE STAY OWN DROPSLOTS FLUSHSLOTS STREAMS KEYPART
    """.split()
)
# Sent as the key is after the frame.
WHOLE = frozenset((b"RESTORE", b"XDELRANGE"))

Translate = Callable[["Frame", int, Words], None]
TABLE: dict[bytes, Translate] = {}
# Those after which the value at a key is another one.
_MOVING = frozenset((b"RENAME", b"COPY", b"SWAPDB"))
_OF_MANY_KEYS = _MOVING | {b"DEL", b"FLUSHDB", b"FLUSHALL", b"TRESTORE"}
_SETTLING = frozenset((b"COMPLETE", b"ABORT"))
_REMOVING = frozenset((b"EVICT", b"EVICTIDS", b"XDEL"))


def becomes(*names: bytes) -> Callable[[Translate], Translate]:
    """Register the translation of effects with these names."""

    def register(translate: Translate) -> Translate:
        for name in names:
            TABLE[name] = translate
        return translate

    return register


class Frame:
    """One frame. `requests` has the commands so far, and `database` the database that is selected
    after them; -1: none."""

    def __init__(
        self,
        keyspace: Keyspace,
        wall_ahead_ms: int,
        database: int,
        effects: list[tuple[int, Words]],
    ) -> None:
        self.keyspace = keyspace
        self.requests: list[bytes] = []
        self.database = database
        self.effects = effects
        self.at = 0
        self.whole: set[Place] = set()
        self._unknown_counters: set[Place] = set()
        self._released: set[Place] = set()
        self._wall_ahead_ms = wall_ahead_ms
        self._moved: set[Place] = set()
        self._swapped: set[int] = set()
        self._settled: dict[Place, EntryId] = {}
        self._removed: set[Place] = set()  # streams of which entries are removed
        self._dropped: set[tuple[int, bytes, bytes]] = set()  # groups that lose a consumer
        for db, words in effects:
            if words[0] in _MOVING:
                self._note_moving(db, words)
            elif words[0] in _SETTLING:
                self._note_settled(db, words)
            elif words[0] in _REMOVING:
                self._removed.add((db, words[1]))
            elif words[0] == b"CONSUMERDROP":
                self._dropped.add((db, words[1], words[2]))

    def _note_moving(self, db: int, words: Words) -> None:
        if words[0] == b"SWAPDB":
            self._swapped.update((int(words[1]), int(words[2])))
        else:
            self._moved.add((db, words[1]))

    def _note_settled(self, db: int, words: Words) -> None:
        """Note the lowest ID of reservations that this frame settles: no entry from it on was
        visible before."""
        place = db, words[1]
        ids = words[3:4] if words[0] == b"COMPLETE" else words[2:]
        lowest = min(parse(word, False) for word in ids)
        self._settled[place] = min(lowest, self._settled.get(place, lowest))

    def translate(self) -> bytes:
        for at, (db, words) in enumerate(self.effects):
            self.at, name = at, words[0]
            if name in WHOLE:
                self.whole.add((db, words[1]))
                continue
            translate = TABLE.get(name)
            if translate is None or (
                self.whole and name not in _OF_MANY_KEYS and (db, words[1]) in self.whole
            ):
                continue
            translate(self, db, words[1:])
        for place in sorted(self._unknown_counters - self.whole):
            self._add_counters(*place)
        for place in sorted(self.whole):
            self._add_whole(*place)
        if len(self.requests) > 1:
            self.requests.insert(0, encode_request((b"MULTI",)))
            self.requests.append(encode_request((b"EXEC",)))
        return b"".join(self.requests)

    # Commands

    def add(self, db: int, *words: bytes) -> None:
        self.select(db)
        self.requests.append(encode_request(words))

    def add_anywhere(self, *words: bytes) -> None:
        """A command that does not depend on the database."""
        self.requests.append(encode_request(words))

    def select(self, db: int) -> None:
        if db != self.database:
            self.database = db
            self.requests.append(encode_request((b"SELECT", b"%d" % db)))

    def add_in_parts(self, db: int, words: Sequence[bytes], ids: Sequence[bytes]) -> None:
        for at in range(0, len(ids), _IDS_MAX):
            self.add(db, *words, *ids[at : at + _IDS_MAX])

    # What is at a key after the frame

    def stream(self, db: int, key: bytes) -> Stream | None:
        value = self.keyspace.databases[db].table.get(key)
        return value if isinstance(value, Stream) else None

    def is_moved(self, db: int, key: bytes) -> bool:
        """True if the value of this key may be at another key after the frame: it is sent as a
        whole then."""
        if db in self._swapped or (db, key) in self._moved:
            self.whole.add((db, key))
            return True
        return False

    def is_visible(self, db: int, key: bytes, entry_id: EntryId) -> bool:
        """True if readers see an entry at once that this frame appends, and it is not among those
        that become visible when reservations are settled."""
        if self.is_moved(db, key):
            return False
        settled = self._settled.get((db, key))
        stream = self.stream(db, key)
        if settled is not None and entry_id >= settled:
            return False
        return stream is None or entry_id <= stream.last_id

    def release(self, db: int, key: bytes) -> None:
        """Add the entries that became visible because reservations were settled."""
        place = db, key
        lowest, stream = self._settled.get(place), self.stream(db, key)
        if self.is_moved(db, key) or lowest is None or place in self._released:
            return
        self._released.add(place)
        self.count_again(db, key)
        if stream is not None:
            for ms, seq, words in stream.range(*lowest):
                self.add(db, b"XADD", key, b"%d-%d" % (ms, seq), *words)

    def count_again(self, db: int, key: bytes) -> None:
        """The commands do not lead to the counters here: they are set after the other commands."""
        if not self.is_moved(db, key):
            self._unknown_counters.add((db, key))

    def _add_counters(self, db: int, key: bytes) -> None:
        stream = self.stream(db, key)
        if stream is not None:
            self.add(
                db, b"XSETID", key, b"%d-%d" % stream.last_id,
                b"ENTRIESADDED", b"%d" % stream.entries_added,
                b"MAXDELETEDID", b"%d-%d" % stream.max_deleted_id,
            )  # fmt: skip

    def _add_whole(self, db: int, key: bytes) -> None:
        database = self.keyspace.databases[db]
        if key in database.append_buffers:
            database.settle(key)
        value = database.table.get(key)
        if value is None:
            self.add(db, b"DEL", key)
            return
        if isinstance(value, Stream):
            dump: StreamDump | StringDump = StreamDump(
                value, self._wall_ahead_ms, STREAM_2, UNOWNED
            )
        else:
            dump = StringDump(value)
        payload = b"".join(dump.steps())
        payload += footer(dump.version, crc64(payload))
        expires_ms = database.expiries.get(key, 0)
        self.add(db, b"RESTORE", key, b"%d" % expires_ms, payload, b"REPLACE", b"ABSTTL")

    # Pending entries

    def claim(self, db: int, key: bytes, group: Group, rows: Iterable[Row]) -> None:
        """Make the entries of these rows pending as they are here."""
        ids: list[bytes] = []
        before: tuple[bytes, int, int] | None = None
        pending = group.pending
        for ms, seq, owner, delivered_ms, deliveries, *_ in rows:
            if pending.waiting_count and pending.is_waiting(ms, seq):
                delivered_ms = 0
            terms = owner, delivered_ms, deliveries
            if terms != before and before is not None:
                self._add_claim(db, key, group.name, ids, before)
                ids = []
            before = terms
            ids.append(b"%d-%d" % (ms, seq))
        if before is not None:
            self._add_claim(db, key, group.name, ids, before)

    def _add_claim(
        self, db: int, key: bytes, group: bytes, ids: list[bytes], terms: tuple[bytes, int, int]
    ) -> None:
        owner, delivered_ms, deliveries = terms
        wall_ms = shifted_ms(delivered_ms, self._wall_ahead_ms)
        words = b"TIME", b"%d" % wall_ms, b"RETRYCOUNT", b"%d" % deliveries, b"FORCE", b"JUSTID"
        for at in range(0, len(ids), _IDS_MAX):
            self.add(
                db, b"XCLAIM", key, group, owner or UNOWNED, b"0", *ids[at : at + _IDS_MAX], *words
            )

    def claim_range(
        self, db: int, key: bytes, group_name: bytes, ends: tuple[EntryId, EntryId], now_ms: int
    ) -> None:
        """Entries were delivered at this time. Between them there may be others that were pending
        before, if the group was moved back."""
        stream, group = self.stream(db, key), self.pending_group(db, key, group_name)
        if stream is None or group is None:
            return
        rows = []
        for row in group.pending.rows(*ends[0], ends[1]):
            if row[3] == now_ms or stream.has_entry(row[0], row[1]):
                rows.append(row)
            elif (db, key) in self._removed:
                self.whole.add((db, key))
                return
        self.claim(db, key, group, rows)

    def claim_new(self, db: int, key: bytes, group_name: bytes, ids: Words) -> None:
        """Make those of these entries, which this frame delivers, pending that are pending here."""
        group = self.pending_group(db, key, group_name)
        if group is not None:
            self.claim(db, key, group, [row for word in ids for row in _row(group, word)])

    def claim_again(
        self, db: int, key: bytes, group_name: bytes, ids: Words, *, is_repeated: bool
    ) -> None:
        """Pending entries have changed. Redis forgets those that are no longer in the stream when
        they are claimed. Of these, a repeated delivery is left out, as Redis does for all; another
        change (XNACK, or a claim before the entry was removed) is sent with the whole key, unless
        the stream is long: it then stays pending there as it was."""
        stream, group = self.stream(db, key), self.pending_group(db, key, group_name)
        if stream is None or group is None:
            return
        rows: list[Row] = []
        for word in ids:
            if stream.has_entry(*parse(word, False)):
                rows += _row(group, word)
            elif not is_repeated and stream.length <= _ENTRIES_MAX and _row(group, word):
                self.whole.add((db, key))
                return
        self.claim(db, key, group, rows)

    def pending_group(self, db: int, key: bytes, name: bytes) -> Group | None:
        """The group, if its pending entries show what became of those in an effect. Otherwise the
        key is sent as a whole, unless the group is gone."""
        if self.is_moved(db, key):
            return None
        if (db, key, name) in self._dropped:
            self.whole.add((db, key))
            return None
        stream = self.stream(db, key)
        return None if stream is None else stream.group(name)


def _row(group: Group, word: bytes) -> list[Row]:
    """The pending entry with this ID, if there is one."""
    ms, seq = parse(word, False)
    return group.pending.rows(ms, seq, (ms, seq), 1)


class Translation:
    """Translates one frame after the other. `database` is the one that the commands so far have
    selected; -1: the next command selects one. `wall_ahead_ms()` is how far the wall clock is ahead
    of the steady clock."""

    def __init__(self, keyspace: Keyspace, wall_ahead_ms: Callable[[], int]) -> None:
        self.database = -1
        self._keyspace = keyspace
        self._wall_ahead_ms = wall_ahead_ms
        self._frequent = FrequentEffects(keyspace, LEFT_OUT, _IDS_MAX)

    def commands(self, payload: bytes) -> bytes:
        """The commands of a frame that was just recorded."""
        data = self._frequent.commands(payload, self._wall_ahead_ms(), self.database)
        if data is None:
            return self.commands_of_any(payload)
        self.database = self._frequent.database
        return data

    def commands_of_any(self, payload: bytes) -> bytes:
        """The same for any effects."""
        effects = [(db, words) for db, words, _ in split_effects(payload)]
        frame = Frame(self._keyspace, self._wall_ahead_ms(), self.database, effects)
        data = frame.translate()
        self.database = frame.database
        return data


# ---------------------------------------------------------------- entries


@becomes(b"STREAM")
def _stream(frame: Frame, db: int, words: Words) -> None:
    """An empty stream. An XADD or a group that follows makes it, too."""
    key = words[0]
    if frame.at + 1 < len(frame.effects) and not frame.keyspace.has_ordering:
        next_db, following = frame.effects[frame.at + 1]
        makes = following[0] in (b"APPEND", b"APPENDONCE", b"GROUP")
        if makes and (next_db, following[1]) == (db, key):
            return
    frame.add(db, b"XGROUP", b"CREATE", key, _NO_GROUP, b"0", b"MKSTREAM")
    frame.add(db, b"XGROUP", b"DESTROY", key, _NO_GROUP)


@becomes(b"APPEND")
def _append(frame: Frame, db: int, words: Words) -> None:
    if not frame.keyspace.has_ordering or frame.is_visible(db, words[0], parse(words[1], False)):
        frame.add(db, b"XADD", *words)


@becomes(b"APPENDONCE")
def _append_once(frame: Frame, db: int, words: Words) -> None:
    _append(frame, db, words[:2] + words[4:])


@becomes(b"FIRE")
def _fire(frame: Frame, db: int, words: Words) -> None:
    """A scheduled entry is appended. Only the stream has its fields; it may be gone already."""
    key, entry_id = words[0], parse(words[3], False)
    if frame.is_moved(db, key) or not frame.is_visible(db, key, entry_id):
        return
    stream = frame.stream(db, key)
    found = [] if stream is None else stream.range(*entry_id, entry_id, 1)
    for _, _, fields in found:
        frame.add(db, b"XADD", key, words[3], *fields)
    if not found:
        frame.count_again(db, key)


@becomes(b"COMPLETE", b"ABORT")
def _settle(frame: Frame, db: int, words: Words) -> None:
    frame.release(db, words[0])


@becomes(b"EVICT")
def _evict(frame: Frame, db: int, words: Words) -> None:
    key, first_kept = words
    if first_kept == b"+":
        frame.add(db, b"XTRIM", key, b"MAXLEN", b"=", b"0")
    else:
        frame.add(db, b"XTRIM", key, b"MINID", b"=", first_kept)


@becomes(b"XDEL")
def _delete(frame: Frame, db: int, words: Words) -> None:
    frame.add_in_parts(db, (b"XDEL", words[0]), words[1:])


@becomes(b"EVICTIDS")
def _evict_ids(frame: Frame, db: int, words: Words) -> None:
    _delete(frame, db, words)
    frame.count_again(db, words[0])


@becomes(b"SETID")
def _set_id(frame: Frame, db: int, words: Words) -> None:
    key, last_id, added, deleted = words
    frame.add(db, b"XSETID", key, last_id, b"ENTRIESADDED", added, b"MAXDELETEDID", deleted)


# ---------------------------------------------------------------- groups


@becomes(b"GROUP")
def _group(frame: Frame, db: int, words: Words) -> None:
    key, group, offset, entries_read = words[:4]
    options = b"MKSTREAM", b"ENTRIESREAD", entries_read
    frame.add(db, b"XGROUP", b"CREATE", key, group, offset, *options)


@becomes(b"GROUPSETID")
def _group_set_id(frame: Frame, db: int, words: Words) -> None:
    key, group, offset, entries_read = words
    frame.add(db, b"XGROUP", b"SETID", key, group, offset, b"ENTRIESREAD", entries_read)


@becomes(b"GROUPDROP")
def _group_drop(frame: Frame, db: int, words: Words) -> None:
    frame.add(db, b"XGROUP", b"DESTROY", *words)


@becomes(b"CONSUMER")
def _consumer(frame: Frame, db: int, words: Words) -> None:
    frame.add(db, b"XGROUP", b"CREATECONSUMER", *words[:3])


@becomes(b"CONSUMERDROP")
def _consumer_drop(frame: Frame, db: int, words: Words) -> None:
    frame.add(db, b"XGROUP", b"DELCONSUMER", *words)


@becomes(b"DELIVER")
def _deliver(frame: Frame, db: int, words: Words) -> None:
    key, group_name, _, first, last, now_ms, entries_read = words[:7]
    if words[9] == b"keep":
        frame.claim_range(
            db, key, group_name, (parse(first, False), parse(last, False)), int(now_ms)
        )
    frame.add(db, b"XGROUP", b"SETID", key, group_name, last, b"ENTRIESREAD", entries_read)


@becomes(b"PICK")
def _pick(frame: Frame, db: int, words: Words) -> None:
    key, group, _, last, _, entries_read, _, _, delivered = words[:9]
    frame.claim_new(db, key, group, words[9 : 9 + int(delivered)])
    frame.add(db, b"XGROUP", b"SETID", key, group, last, b"ENTRIESREAD", entries_read)


# The number of words before the IDs.
_BEFORE_IDS = {b"REDELIVER": 5, b"CLAIM": 6, b"TAKE": 6, b"WAIT": 5, b"RELEASE": 4, b"DEAD": 5}


@becomes(*_BEFORE_IDS)
def _change_pending(frame: Frame, db: int, words: Words) -> None:
    name = frame.effects[frame.at][1][0]
    is_repeated = name == b"REDELIVER"
    frame.claim_again(db, words[0], words[1], words[_BEFORE_IDS[name] :], is_repeated=is_repeated)


@becomes(b"ACK")
def _ack(frame: Frame, db: int, words: Words) -> None:
    frame.add_in_parts(db, (b"XACK", *words[:2]), words[2:])


# ---------------------------------------------------------------- strings and keys


@becomes(b"SET")
def _set(frame: Frame, db: int, words: Words) -> None:
    frame.add(db, b"SET", *words)


@becomes(b"UPDATE")
def _update(frame: Frame, db: int, words: Words) -> None:
    frame.add(db, b"SET", *words, b"KEEPTTL")


@becomes(b"EXTEND")
def _extend(frame: Frame, db: int, words: Words) -> None:
    frame.add(db, b"APPEND", *words)


@becomes(b"PATCH")
def _patch(frame: Frame, db: int, words: Words) -> None:
    frame.add(db, b"SETRANGE", *words)


@becomes(b"PADDED")
def _padded(frame: Frame, db: int, words: Words) -> None:
    frame.add(db, b"DEL", words[0])
    frame.add(db, b"SETRANGE", *words)


@becomes(b"EXPIRE")
def _expire(frame: Frame, db: int, words: Words) -> None:
    key, expires_ms = words
    if expires_ms == b"0":
        frame.add(db, b"PERSIST", key)
    else:
        frame.add(db, b"PEXPIREAT", key, expires_ms)


@becomes(b"DEL")
def _drop(frame: Frame, db: int, words: Words) -> None:
    frame.whole.difference_update((db, key) for key in words)
    frame.add(db, b"DEL", *words)


@becomes(b"RENAME")
def _rename(frame: Frame, db: int, words: Words) -> None:
    key, target = words[0], (int(words[1]), words[2])
    frame.whole.discard(target)
    if (db, key) in frame.whole:
        frame.whole.remove((db, key))
        frame.whole.add(target)
        frame.add(db, b"DEL", key)
    elif target[0] == db:
        frame.add(db, b"RENAME", key, target[1])
    else:
        _copy(frame, db, words)
        frame.add(db, b"DEL", key)


@becomes(b"COPY")
def _copy(frame: Frame, db: int, words: Words) -> None:
    key, target = words[0], (int(words[1]), words[2])
    if (db, key) in frame.whole:
        frame.whole.add(target)
        return
    frame.whole.discard(target)
    frame.add(db, b"COPY", key, target[1], b"DB", words[1], b"REPLACE")


@becomes(b"TRESTORE")
def _restore(frame: Frame, db: int, words: Words) -> None:
    """A stream of a backup, which was made at a source, is complete and moves to its key."""
    source, key = words[:2]
    frame.whole.discard((db, source))
    frame.add(db, b"DEL", source)
    frame.whole.add((db, key))


@becomes(b"SWAPDB")
def _swap(frame: Frame, db: int, words: Words) -> None:
    one, other = int(words[0]), int(words[1])
    number = {one: other, other: one}
    frame.whole = {(number.get(place[0], place[0]), place[1]) for place in frame.whole}
    frame.add_anywhere(b"SWAPDB", *words)


@becomes(b"FLUSHDB")
def _flush(frame: Frame, db: int, words: Words) -> None:
    frame.whole = {place for place in frame.whole if place[0] != db}
    frame.add(db, b"FLUSHDB")


@becomes(b"FLUSHALL")
def _flush_all(frame: Frame, db: int, words: Words) -> None:
    frame.whole.clear()
    frame.add_anywhere(b"FLUSHALL")
