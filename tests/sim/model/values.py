"""The model's databases: values at keys, expiries, the groups of streams, and marks of WATCH."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.sim.data import Data, Group, Stream, Value
from tests.sim.model.answers import WRONG_TYPE, Refused
from tests.sim.model.clients import Key
from tests.sim.model.waits import Waits
from tests.sim.promises import demand


@dataclass(slots=True)
class ServerState:
    """The time at the server, and whether it accepts writes."""

    now_ms: int
    steady_ahead_ms: Callable[[], int]
    write_error: str | None = None
    may_remove: bool = False
    memory_full: bool = False
    is_slow: bool = False

    @property
    def steady_ms(self) -> int:
        """The time for waits of clients and groups."""
        return self.now_ms + self.steady_ahead_ms()

    def check_writable(self) -> None:
        if self.write_error is not None:
            raise Refused(self.write_error)


class Values:
    def __init__(self, data: Data, state: ServerState, waits: Waits) -> None:
        self.data = data
        self._state = state
        self._waits = waits
        self._made_as: dict[int, int] = {}  # incarnations as we count them, and the server's
        self._incarnation = 1 << 60  # the server's numbers are not predicted
        self._changes: dict[Key, int] = {}
        for _, _, group in self.groups():
            group.last_used_ms = state.steady_ms

    # ------------------------------------------------------------ keys

    def value(self, key: Key) -> Value | None:
        """The value at a key; an expired key is deleted, as in the server."""
        number, name = key
        expiry_ms = self.data.expiries[number].get(name)
        if expiry_ms is not None and expiry_ms <= self._state.now_ms:
            if self._state.write_error is None:
                self.delete(key)
            return None
        return self.data.databases[number].get(name)

    def expired(self) -> list[Key]:
        """Expired keys, in order of their expiry."""
        due = [
            (number, at_ms, name)
            for number, expiries in enumerate(self.data.expiries)
            for name, at_ms in expiries.items()
            if at_ms <= self._state.now_ms
        ]
        return [(number, name) for number, _, name in sorted(due)]

    def note_change(self, key: Key) -> None:
        """Note that the value at a key is replaced or removed, or gets another expiry."""
        self._changes[key] = self._changes.get(key, 0) + 1

    def mark_of(self, key: Key) -> object:
        """A value that differs after a watched key was changed."""
        value = self.value(key)
        if not isinstance(value, Stream):
            return self._changes.get(key), value
        return (self._changes.get(key), value.incarnation, value.entries_added, len(value.entries),
                value.entries_deleted, value.entries_evicted, value.last_id,
                value.max_deleted, value.last_number, len(value.scheduled))  # fmt: skip

    def put(self, key: Key, value: Value, keep_expiry: bool = False) -> None:
        self.note_change(key)
        self.data.put(*key, value, keep_expiry)
        self._waits.mark_ready(key)

    def delete(self, key: Key) -> None:
        self.note_change(key)
        self.data.drop(*key)
        self._waits.mark_ready(key)

    def set_expiry(self, key: Key, at_ms: int) -> None:
        """0: never."""
        self.note_change(key)
        if at_ms:
            self.data.expiries[key[0]][key[1]] = at_ms
        else:
            self.data.expiries[key[0]].pop(key[1], None)

    def leave_key(self, key: Key) -> None:
        """A stream moves to another key, without the readers that wait on its groups: for these
        groups the wait ends. Groups that have ended do not exist at the new key."""
        value = self.data.databases[key[0]][key[1]]
        if not isinstance(value, Stream):
            return
        for name, group in list(value.groups.items()):
            if self._waits.has_group(key, name):
                group.last_used_ms = self._state.steady_ms
            elif self.is_over(key, name, group):
                del value.groups[name]

    # ------------------------------------------------------------ streams

    def stream(self, key: Key) -> Stream | None:
        value = self.value(key)
        if isinstance(value, bytes):
            raise Refused(WRONG_TYPE)
        return value

    def make(self, key: Key) -> Stream:
        """The stream at a key, created if necessary."""
        stream = self.stream(key)
        if stream is None:
            stream = Stream(self.new_incarnation())
            self.put(key, stream)  # waiting readers have its groups again
        return stream

    def new_incarnation(self) -> int:
        self._incarnation += 1
        return self._incarnation

    def judge_incarnation(self, stream: Stream, shown: int) -> None:
        """Check that equal incarnations mean the same stream, and different ones different
        streams."""
        known = self._made_as.setdefault(stream.incarnation, shown)
        others = list(self._made_as.values()).count(shown)
        demand(known == shown and others == 1, f"incarnation {shown} and not {known}, of {others}")

    # ------------------------------------------------------------ groups

    def groups(self) -> list[tuple[Key, bytes, Group]]:
        return [
            ((number, key), name, group)
            for number, database in enumerate(self.data.databases)
            for key, value in database.items()
            if isinstance(value, Stream)
            for name, group in value.groups.items()
        ]

    def is_over(self, key: Key, name: bytes, group: Group) -> bool:
        """True if the group's time to live has passed and no client waits for it."""
        if group.ttl_ms == 0 or self._waits.has_group(key, name):
            return False
        return self._state.steady_ms >= group.last_used_ms + group.ttl_ms

    def drop_group(self, key: Key, name: bytes) -> None:
        stream = self.data.databases[key[0]][key[1]]
        assert isinstance(stream, Stream)
        del stream.groups[name]
        self._waits.mark_ready(key)

    def expire(self, group: Group) -> None:
        """Forget the pending entries whose retries have ended."""
        group.forget(group.expired(self._state.steady_ms))

    def live(self, key: Key, name: bytes) -> Group | None:
        """The group, unless its time to live has passed."""
        stream = self.value(key)
        assert isinstance(stream, Stream)
        group = stream.groups.get(name)
        if group is None:
            return None
        if self.is_over(key, name, group):
            self.drop_group(key, name)
            return None
        self.expire(group)
        return group

    def touch_groups(self, keys: list[Key], name: bytes) -> None:
        """Restart the time to live of the groups with this name."""
        for key in keys:
            stream = self.data.databases[key[0]].get(key[1])
            group = stream.groups.get(name) if isinstance(stream, Stream) else None
            if group is not None:
                group.last_used_ms = self._state.steady_ms
