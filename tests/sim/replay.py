"""Effects, applied by a second hand to plain data, with a judgement on each.

It shares nothing with the server's own reading of effects, so a recovered server can be compared
with "exactly the durable effects". And as effects are the server's history in the order in which
it happened, this is where the promises about that order are checked: ids rise, offsets never go
back, a retry is never early, nothing that expired is given out.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.sim.data import Data, EntryId, Group, Pending, Stream


class BrokenPromise(AssertionError):
    """The server did what it promises never to do."""


def demand(true: object, sentence: str) -> None:
    if not true:
        raise BrokenPromise(sentence)


def effects_of(payload: bytes) -> Iterator[list[bytes]]:
    at = 0
    while at < len(payload):
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
        for name, *words in effects_of(payload):
            if name == b"SELECT":
                self._db = int(words[0])
                continue
            method = getattr(self, "_apply_" + name.decode().lower(), None)
            demand(method, f"effect {name!r} is not known")
            method(*words)  # type: ignore[misc]

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

    # Keys

    def _apply_set(self, key: bytes, value: bytes) -> None:
        self.data.databases[self._db][key] = value

    def _apply_del(self, *keys: bytes) -> None:
        for key in keys:
            demand(key in self.data.databases[self._db], f"DEL of {key!r}, which is not there")
            del self.data.databases[self._db][key]

    def _apply_flushdb(self) -> None:
        self.data.databases[self._db].clear()

    def _apply_flushall(self) -> None:
        for db in self.data.databases:
            db.clear()

    # Streams

    def _apply_stream(self, key: bytes, incarnation: bytes) -> None:
        demand(key not in self.data.databases[self._db], f"STREAM at {key!r}, which is there")
        self.data.databases[self._db][key] = Stream(int(incarnation))

    def _apply_append(self, key: bytes, text: bytes, *words: bytes) -> None:
        stream, entry_id = self._stream(key), id_of(text)
        demand(entry_id > stream.last_id, f"{key!r}: id {entry_id} after {stream.last_id}")
        stream.append(entry_id, words)
        self.data.ever.add((self._db, key, entry_id))

    def _apply_evict(self, key: bytes, text: bytes) -> None:
        stream = self._stream(key)
        gone = [i for i in stream.entries if text == b"+" or i < id_of(text)]
        demand(gone, f"{key!r}: EVICT {text!r} evicts nothing")
        stream.evict(gone)

    def _apply_xdel(self, key: bytes, *texts: bytes) -> None:
        for text in texts:
            demand(self._stream(key).delete(id_of(text)), f"{key!r}: XDEL of missing {text!r}")

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

    def _apply_groupdrop(self, key: bytes, name: bytes) -> None:
        self._found_group(key, name)
        del self._stream(key).groups[name]

    def _apply_consumer(self, key: bytes, name: bytes, consumer: bytes, ms: bytes) -> None:
        self._found_group(key, name).consumers[consumer] = None

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
            demand(entry_id not in group.pending, f"{entry_id} of {name!r} is new and pending")
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
            record.deliveries += 1
            if retry_ms != b"-":
                record.retry = int(retry_ms), int(expire_ms)

    def _apply_ack(self, key: bytes, name: bytes, *texts: bytes) -> None:
        for text in texts:
            record = self._found_group(key, name).pending.pop(id_of(text), None)
            demand(record, f"{text!r} of {name!r} is acknowledged and not pending")
