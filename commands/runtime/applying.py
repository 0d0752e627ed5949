"""Applying effects on streams, groups and consumers at start.

APPEND, DELIVER and ACK, which most journals consist of, are applied by `effects` itself, and a few
effects next to the commands that record them. docs/formats.md lists all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.commands.runtime.effects import effect
from millstream.ids import parse
from millstream.storage.groups.pending_sweeps import delete_consumer
from millstream.storage.log.trimming import evict_all

if TYPE_CHECKING:
    from millstream.storage.groups.consumers import Consumer
    from millstream.storage.groups.group import Group
    from millstream.storage.keyspace.keyspace import Keyspace
    from millstream.storage.reservations.held import Held
    from millstream.storage.streams.stream import Stream

Words = list[bytes]


def id_of(text: bytes) -> tuple[int, int]:
    try:
        return parse(text, False)
    except ValueError:
        raise ValueError(f"{text!r} is not an id") from None


def stream_of(keyspace: Keyspace, db: int, key: bytes) -> Stream:
    """The stream that an effect changes; a running snapshot captures it first."""
    stream = keyspace.databases[db].writable_stream(key)
    if stream is None:
        raise ValueError(f"key {key!r} has no stream")
    return stream


def held_of(keyspace: Keyspace, db: int, key: bytes) -> Held:
    """The reservations of a stream that an effect changes."""
    held: Held | None = stream_of(keyspace, db, key).held
    if held is None:
        raise ValueError(f"key {key!r} has no reservations")
    return held


def _group_of(keyspace: Keyspace, db: int, words: Words) -> Group:
    """The group of an effect whose first words are a key and a group."""
    group = stream_of(keyspace, db, words[0]).group(words[1])
    if group is None:
        raise ValueError(f"stream {words[0]!r} has no group {words[1]!r}")
    return group


def _consumer_of(group: Group, name: bytes) -> Consumer:
    consumer = group.consumer(name)
    if consumer is None:
        raise ValueError(f"group {group.name!r} has no consumer {name!r}")
    return consumer


# ---------------------------------------------------------------- the frames themselves


@effect(b"HISTORY")
def apply_history(keyspace: Keyspace, db: int, words: Words) -> None:
    """HISTORY id number: from this frame on, another line of history."""
    keyspace.begin_history(words[0].decode("ascii"), int(words[1]))


# ---------------------------------------------------------------- streams


@effect(b"STREAM", wakes_readers=True)
def apply_stream(keyspace: Keyspace, db: int, words: Words) -> None:
    """STREAM key incarnation: an empty stream."""
    keyspace.databases[db].make_stream(words[0], int(words[1]))


@effect(b"EVICT")
def apply_evict(keyspace: Keyspace, db: int, words: Words) -> None:
    """EVICT key id: everything below id; `+`: everything."""
    stream = stream_of(keyspace, db, words[0])
    if words[1] == b"+":
        evict_all(stream)
    else:
        stream.evict(*id_of(words[1]))


@effect(b"XDEL")
def apply_xdel(keyspace: Keyspace, db: int, words: Words) -> None:
    """XDEL key id [id ...]."""
    stream = stream_of(keyspace, db, words[0])
    for word in words[1:]:
        stream.delete_id(*id_of(word))


# ---------------------------------------------------------------- groups and consumers


@effect(b"GROUP")
def apply_group(keyspace: Keyspace, db: int, words: Words) -> None:
    """GROUP key name id entries-read ttl-ms: a new group."""
    stream = stream_of(keyspace, db, words[0])
    group = stream.make_group(words[1], *id_of(words[2]), keyspace.steady_ms)
    group.entries_read = int(words[3])
    stream.set_ttl(group, int(words[4]))
    keyspace.schedule(db, words[0], group)


@effect(b"GROUPTTL")
def apply_group_ttl(keyspace: Keyspace, db: int, words: Words) -> None:
    """GROUPTTL key name ttl-ms."""
    group = _group_of(keyspace, db, words)
    stream_of(keyspace, db, words[0]).set_ttl(group, int(words[2]))
    keyspace.schedule(db, words[0], group)


@effect(b"GROUPSETID")
def apply_group_setid(keyspace: Keyspace, db: int, words: Words) -> None:
    """GROUPSETID key name id entries-read."""
    group = _group_of(keyspace, db, words)
    stream_of(keyspace, db, words[0]).move_group(group, *id_of(words[2]), int(words[3]))


@effect(b"GROUPDROP", wakes_readers=True)
def apply_group_drop(keyspace: Keyspace, db: int, words: Words) -> None:
    """GROUPDROP key name."""
    stream_of(keyspace, db, words[0]).drop_group(words[1])


@effect(b"CONSUMER")
def apply_consumer(keyspace: Keyspace, db: int, words: Words) -> None:
    """CONSUMER key group name ms: a new consumer."""
    keyspace.note_steady(int(words[3]))
    _group_of(keyspace, db, words).make_consumer(words[2], int(words[3]))


@effect(b"CONSUMERDROP")
def apply_consumer_drop(keyspace: Keyspace, db: int, words: Words) -> None:
    """CONSUMERDROP key group name: remove a consumer and its pending entries."""
    group = _group_of(keyspace, db, words)
    _consumer_of(group, words[2])
    delete_consumer(group, words[2])


@effect(b"SEEN")
def apply_seen(keyspace: Keyspace, db: int, words: Words) -> None:
    """SEEN key group consumer ms: the consumer made a request and got no new entries."""
    keyspace.note_steady(int(words[3]))
    _consumer_of(_group_of(keyspace, db, words), words[2]).seen_ms = int(words[3])


# ---------------------------------------------------------------- pending entries


@effect(b"REDELIVER")
def apply_redeliver(keyspace: Keyspace, db: int, words: Words) -> None:
    """REDELIVER key group ms retry-ms expire-ms id [id ...]: pending entries delivered again;
    retry-ms `-` keeps each entry's own pair."""
    group = _group_of(keyspace, db, words)
    now_ms = int(words[2])
    keyspace.note_steady(now_ms)
    retry = None if words[3] == b"-" else (int(words[3]), int(words[4]))
    for word in words[5:]:
        group.redeliver_id(*id_of(word), now_ms, retry)
    keyspace.schedule(db, words[0], group)


@effect(b"CLAIM")
def apply_claim(keyspace: Keyspace, db: int, words: Words) -> None:
    """CLAIM key group consumer ms delivery-ms deliveries id [id ...]: a consumer claims entries. An
    entry that is not pending becomes pending, with one earlier delivery. deliveries: a number, `+`
    for one more, `=` for no change."""
    group = _group_of(keyspace, db, words)
    consumer = _consumer_of(group, words[2])
    keyspace.note_steady(int(words[3]))
    consumer.seen_ms = consumer.active_ms = int(words[3])
    for word in words[6:]:
        group.claim(*id_of(word), consumer, int(words[4]), words[5])


@effect(b"RELEASE", wakes_readers=True)
def apply_release(keyspace: Keyspace, db: int, words: Words) -> None:
    """RELEASE key group ms deliveries id [id ...]: remove the owners of entries. An entry that is
    not pending becomes pending, without earlier deliveries. deliveries: a number, `-` for one less,
    `=` for no change."""
    group = _group_of(keyspace, db, words)
    keyspace.note_steady(int(words[2]))
    for word in words[4:]:
        group.release(*id_of(word), words[3], int(words[2]))
