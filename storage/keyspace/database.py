"""The keys of one database.

A value is a Stream or the bytes of a string. The look-ups of streams, which every append and read
needs, are compiled (`keyspace_core`). While a snapshot is taken, a key that changes is captured
first (`before_change`, storage/capture/capture).

SCAN must return every key that exists during the whole scan. The checksum of a key gives it a fixed
slot, and a cursor is a slot number, so no other change can move a key from after the cursor to
before it.

A key may have an expiry. A look-up after the expiry deletes the key and finds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from millstream.storage.blocks.lazyfree import discard_items, discard_table
from millstream.storage.groups.dead_entries import dead_count
from millstream.storage.keyspace.expiry_queue import NEVER, ExpiryQueue
from millstream.storage.keyspace.key_slots import KeySlots
from millstream.storage.keyspace.key_walk import KeyIterator
from millstream.storage.keyspace.keyspace_core import DatabaseCore, KeyspaceCore
from millstream.storage.streams.stream import Stream

Value = bytes | Stream

# A longer string is always `raw` for OBJECT ENCODING.
RAW_BYTES = 64


class Appended(bytes):
    """A string after APPEND: `raw` for OBJECT ENCODING, as in Redis. Convert it before it leaves
    the database, because replies need plain bytes."""


class Sum(bytes):
    """The text of a floating point number after INCRBYFLOAT: never `int` for OBJECT ENCODING, as in
    Redis. Convert it, too, before it leaves the database."""


GROWING = Appended()


def changed_string(text: bytes | bytearray) -> bytes:
    """The stored form of a string after APPEND or a patch."""
    return bytes(text) if len(text) > RAW_BYTES else Appended(text)


class Database(DatabaseCore):
    """The keys of one database.

    `table` maps keys to values. `waiting` maps keys to the waits of blocked clients. `watched` maps
    the keys that WATCH names to a Watch. `expiries` maps keys to their expiry in unix milliseconds,
    and `due` has the earliest expiry. `slots` has the keys in the order of their checksums.
    `used_s` maps the keys of strings to their last use.
    `append_buffers` has strings that are being appended to, in a form that grows in place: the
    table contains GROWING for these keys, and `get` converts them to bytes.
    """

    def __init__(self, keyspace: KeyspaceCore, index: int) -> None:
        super().__init__(keyspace, index)
        self.watched = {}
        self._begin_table()

    def _begin_table(self) -> None:
        self.table = {}
        self.slots = KeySlots(self.keyspace.clustered)
        self.expiries = {}
        self.due = ExpiryQueue(self.expiries)
        self.used_s = {}
        self.append_buffers = {}
        self.reservations = 0
        self.scheduled = 0
        self.forget_cached()

    def __len__(self) -> int:
        return len(self.table)

    # ------------------------------------------------------------ values

    def look_up(self, key: bytes) -> None:
        """Count a look-up and a use of an existing key, without returning its value."""
        self.keyspace.hits += 1
        if self.keyspace.touching:
            self.note_use(key, self.table[key])

    def set(self, key: bytes, value: Value, keep_expiry: bool = False) -> None:
        """Store bytes or a Stream at a key, replacing any value; remove its expiry unless
        keep_expiry."""
        if type(value) is bytes and self.replace_string(key, value, keep_expiry):
            return
        self.before_change(key)
        if self.expiries and not keep_expiry:
            self._drop_expiry(key)
        self.put(key, value)
        if isinstance(value, Stream):
            self.schedule_groups(key, value)
        self.mark_ready(key)

    def make_stream(self, key: bytes, incarnation: int) -> Stream:
        """Store an empty stream at an unused key."""
        stream = Stream(incarnation)
        self.before_change(key)
        self.keyspace.incarnation = max(self.keyspace.incarnation, incarnation)
        self.put(key, stream)
        return stream

    def put(self, key: bytes, value: Value) -> None:
        """Store a value at a key, without a change of its expiry and without a notification."""
        keyspace = self.keyspace
        old = self.table.get(key)
        if old is None:
            slot = self.slots.add(key)
            for walk in keyspace.walks:
                walk.note_come(self.slots, slot, key)
        elif isinstance(old, Stream):
            self._forget_moment(key, old)
        self.table[key] = value
        if self.append_buffers:
            self.append_buffers.pop(key, None)
        if isinstance(value, Stream):
            value.used_s = keyspace.now_s
            if value.held is not None:
                self.reservations += value.held.reservations
            if value.schedule is not None:
                self.scheduled += len(value.schedule)
            # A value that is stored now does not belong to a capture in progress.
            value.capture_mark = keyspace.capture_number
        else:
            self.used_s[key] = keyspace.now_s
        self.forget_cached()

    def delete(self, key: bytes) -> bool:
        """Remove a key; False when it did not exist."""
        if key not in self.table or (self.expiries and self.has_expired(key)):
            return False
        self.before_change(key)
        self._remove(key)
        self.mark_ready(key)
        return True

    def drop(self, key: bytes) -> None:
        """Remove an existing key, expired or not."""
        self.before_change(key)
        self._remove(key)
        self.mark_ready(key)

    def _remove(self, key: bytes) -> None:
        for walk in self.keyspace.walks:
            walk.note_gone(self.slots, self.slots.slot_of(key), key)
        value = self.table.pop(key)
        if isinstance(value, Stream):
            self._forget_moment(key, value)
        self.used_s.pop(key, None)
        if self.append_buffers:
            self.append_buffers.pop(key, None)
        self._drop_expiry(key)
        self.slots.remove(key)
        self.forget_cached()

    def before_change(self, key: bytes) -> None:
        """Call before the value or the expiry at a key is replaced or removed."""
        if self.keyspace.capture is not None:
            self.keyspace.capture.before_change(self, key, self.table.get(key))
        if self.watched:
            watch = self.watched.get(key)
            if watch is not None:
                watch.changes += 1

    # ------------------------------------------------------------ strings that grow

    def settle(self, key: bytes) -> bytes:
        """Convert a growing string to bytes: one copy for all appends before."""
        value = self.table[key] = changed_string(self.append_buffers.pop(key))
        return value

    def settle_all(self) -> None:
        """Convert all growing strings to bytes."""
        for key in list(self.append_buffers):
            self.settle(key)

    # ------------------------------------------------------------ use

    def touch(self, key: bytes) -> bool:
        """Count a use of a key; False when it does not exist."""
        value = self.get(key)
        if value is None:
            return False
        self.note_use(key, value)
        return True

    def idle_s(self, key: bytes) -> int:
        """Seconds since the key was last used."""
        return max(0, self.keyspace.now_s - self._used_s(key))

    def set_idle_s(self, key: bytes, idle_s: int) -> None:
        """Set the last use of an existing key to `idle_s` seconds ago."""
        self._set_used_s(key, max(0, self.keyspace.now_s - idle_s))

    def _used_s(self, key: bytes) -> int:
        value = self.table[key]
        return value.used_s if isinstance(value, Stream) else self.used_s[key]

    def _set_used_s(self, key: bytes, used_s: int) -> None:
        value = self.table[key]
        if isinstance(value, Stream):
            value.used_s = used_s
        else:
            self.used_s[key] = used_s

    # ------------------------------------------------------------ streams with moments

    def schedule_groups(self, key: bytes, stream: Stream) -> None:
        """Schedule the timers of a stream's groups and policy, which were scheduled under another
        key or not at all. The server soon checks whether the policy evicts entries for their age:
        at start, entries may follow that do not schedule a check."""
        if stream.policy is not None:
            self.keyspace.trim_soon(self.index, key, stream)
        if stream.schedule is not None:
            stream.schedule.noted_ms = NEVER  # of another database
            self.keyspace.note_firing(self.index, key, stream.schedule)
        if stream.held is not None:
            # Its timers were scheduled under another key, or not at all.
            stream.held.forget_moments()
            self.note_lease_moment(key, stream.held, stream.held.next_deadline_ms)
        for group in stream.groups.values():
            group.scheduled_ms = NEVER
            if group.pending.blocked_clients:
                # Readers waited under the old key and stop waiting now: the group's time to live
                # begins.
                group.restart_ttl(self.keyspace.steady_ms)
                if group.ttl_ms:
                    group.scheduled_ms = self.keyspace.steady_ms + group.ttl_ms
                    self.keyspace.timer_requests.append(
                        (group.scheduled_ms, self.index, key, group.name)
                    )
            if dead_count(group.pending):
                self.keyspace.dead_letters.note_dead(self.index, key, group.name)
            self.keyspace.schedule(self.index, key, group)

    def _forget_moment(self, key: bytes, stream: Stream) -> None:
        """Cancel the timers of a stream that was removed from its key, and subtract its
        reservations and scheduled entries."""
        if stream.held is not None:
            self.reservations -= stream.held.reservations
        if stream.schedule is not None:
            self.scheduled -= len(stream.schedule)
            self.keyspace.firing_schedule.forget(stream.schedule.noted_ms, self.index, key)
            stream.schedule.noted_ms = NEVER
        if stream.policy is not None:
            self.keyspace.retention_schedule.forget(stream.policy.next_check_ms, self.index, key)

    # ------------------------------------------------------------ whole databases

    def exchange(self, other: Database) -> None:
        """Exchange all keys with another database; waiting and watching clients stay."""
        for name in (
            "table",
            "slots",
            "expiries",
            "due",
            "used_s",
            "append_buffers",
            "reservations",
            "scheduled",
        ):
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, theirs)
            setattr(other, name, mine)
        self.forget_cached()
        other.forget_cached()

    def rename(self, key: bytes, to: Database, new_key: bytes) -> None:
        """Move a value with its expiry to another key of this or another database, replacing any
        value there."""
        value = self.table[key]
        if value is GROWING:
            value = self.settle(key)
        expiry_ms = self.expiries.get(key)
        used_s = self._used_s(key)
        self.before_change(key)
        to.before_change(new_key)
        self._remove(key)
        to._drop_expiry(new_key)
        to.put(new_key, value)
        if expiry_ms is not None:
            to.note_expiry(new_key, expiry_ms)
        to._set_used_s(new_key, used_s)
        if isinstance(value, Stream):
            to.schedule_groups(new_key, value)
        self.mark_ready(key)
        to.mark_ready(new_key)

    def clear(self) -> int:
        """Remove every key; return their number."""
        count = len(self.table)
        for key, watch in self.watched.items():
            watch.changes += key in self.table
        for table in (self.table, self.slots, self.expiries, self.used_s):
            discard_table(table, self.keyspace.is_walked)
        for heap in self.due.heaps:
            discard_items(heap)
        self._begin_table()
        if count:
            self.keyspace.retention_schedule.forget_database(self.index)
            self.keyspace.firing_schedule.forget_database(self.index)
        for key in self.waiting:
            self.mark_ready(key)
        return count

    def keys(self) -> Iterable[bytes]:
        """All keys, including expired keys that are not deleted yet. The database must not change
        during the iteration."""
        return self.table.keys()

    def walk(self) -> KeyIterator:
        """Begin a walk over the existing keys. End it with `close`."""
        return KeyIterator(self.keyspace, self)

    def scan(self, cursor: int, count: int) -> tuple[int, list[bytes]]:
        """About `count` keys from a cursor on (0 starts), and the next cursor, 0 at the end. The
        keys may include expired ones that are not deleted yet."""
        return self.slots.scan(cursor, count)

    def key_at(self, number: int) -> bytes | None:
        """A key selected by a number, for random choices; None when there is none."""
        return self.slots.key_at(number)

    # ------------------------------------------------------------ expiry

    def drop_expired(self, key: bytes) -> None:
        """Delete an expired key."""
        self.drop(key)
        self.keyspace.expired_count += 1
        self.keyspace.dirty += 1
        if self.keyspace.on_expired is not None:
            self.keyspace.on_expired(self.index, key)

    def expiry_ms(self, key: bytes) -> int:
        """The unix time in milliseconds at which a key expires; 0 for never."""
        return self.expiries.get(key, 0)

    def set_expiry(self, key: bytes, at_ms: int) -> None:
        """Set the expiry of an existing key in unix milliseconds; 0: never."""
        if at_ms and self.extend_expiry(key, at_ms):
            return
        self.before_change(key)
        if at_ms:
            self.note_expiry(key, at_ms)
        else:
            self._drop_expiry(key)
        self.forget_cached()

    def note_expiry(self, key: bytes, at_ms: int) -> None:
        if self.due.note(key, at_ms):
            self.keyspace.expiry_noted = True

    def _drop_expiry(self, key: bytes) -> None:
        self.expiries.pop(key, None)

    @property
    def expiring_count(self) -> int:
        """The number of keys with an expiry."""
        return len(self.expiries)

    def average_ttl_ms(self, expiries: Iterable[int] = ()) -> int:
        """The average remaining time of a sample of the keys with an expiry, or of these ones."""
        some = list(islice(expiries or self.expiries.values(), 64))
        now_ms = self.keyspace.now_ms
        return sum(max(0, at - now_ms) for at in some) // len(some) if some else 0
