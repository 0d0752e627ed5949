# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""A stream in a snapshot, and a copy of a stream."""

from libc.stdint cimport uint64_t

from millstream.storage.groups.group cimport Group, has_delivery_rules
from millstream.storage.groups.group_snapshot cimport copy_group, dump_group, load_group
from millstream.storage.groups.shared_groups cimport shared_groups
from millstream.storage.log.log_loading cimport load_blocks
from millstream.storage.streams.head_eviction cimport counted_groups
from millstream.storage.streams.stream cimport RetentionPolicy, Stream
from millstream.storage.streams.stream_groups cimport all_groups

from millstream.storage.streams.idempotence import Window
from millstream.storage.streams.producers import Producers


def dump_stream(Stream stream not None, bint shared=False) -> tuple:
    """The stream as msgpack-able metadata and immutable blocks (docs/formats.md, stream).
    shared: the groups, the producers and their messages are views that are converted later
    (SharedGroups, Producers.share, Window.share)."""
    cdef object producers = {}
    if stream.producers is not None:
        producers = stream.producers.share() if shared else stream.producers.dump()
    cdef dict by_name = counted_groups(stream)
    cdef object groups = [dump_group(group) for group in by_name.values()] if (
        not shared or not by_name) else shared_groups(by_name, True, 0)
    return stream_meta(stream, shared, producers, groups), stream.blocks()


cdef dict stream_meta(Stream stream, bint shared, producers, groups):
    meta = {
        "length": stream.length,
        "last_id": [stream.last_ms, stream.last_seq],
        "first_kept": [stream.head_ms, stream.head_seq],
        "max_evicted": [stream.max_evicted_ms, stream.max_evicted_seq],
        "max_deleted": [stream.max_deleted_ms, stream.max_deleted_seq],
        "entries_added": stream.entries_added,
        "entries_evicted": stream.entries_evicted,
        "entries_deleted": stream.entries_deleted,
        "incarnation": stream.incarnation,
        "groups": groups,
        "producers": producers,
        "open": stream.has_tail() and not stream.tail.closed,
    }
    if stream.policy is not None:
        meta["policy"] = stream.policy.dump()
    if stream.idempotence is not None:
        meta["idempotence"] = (
            stream.idempotence.share() if shared else stream.idempotence.dump())
    return meta


def stream_has_rules(Stream stream not None) -> bool:
    """True if a group has rules of delivery, or an entry that waits by earlier ones, or if groups
    matter for the policy, or the stream has or had scheduled entries. A snapshot of it cannot be read
    by versions of millstream without them."""
    cdef Group group
    if stream.schedule is not None or stream.policy is not None and stream.policy.evict:
        return True
    for group in all_groups(stream.group_set):
        if has_delivery_rules(group) or group.pending.records.waiting:
            return True
    return False


def load_stream(meta, blocks, uint64_t now_ms, groups=None) -> Stream:
    """Make a stream from the result of `dump_stream`; ValueError when the parts are inconsistent.
    groups: those of the metadata, if they are already made."""
    cdef Stream stream = Stream(meta["incarnation"])
    stream.last_ms, stream.last_seq = meta["last_id"]
    stream.head_ms, stream.head_seq = meta["first_kept"]
    stream.max_evicted_ms, stream.max_evicted_seq = meta["max_evicted"]
    stream.max_deleted_ms, stream.max_deleted_seq = meta["max_deleted"]
    stream.entries_added = meta["entries_added"]
    stream.entries_evicted = meta["entries_evicted"]
    stream.entries_deleted = meta["entries_deleted"]
    load_blocks(stream, blocks, meta.get("open", False))
    if stream.length != meta["length"]:
        raise ValueError(f"it holds {stream.length} entries and says {meta['length']}")
    if groups is None:
        groups = (load_group(row, now_ms) for row in meta["groups"])
    for group in groups:
        stream.load_group(group)
    load_rest(stream, meta)
    return stream


def load_rest(Stream stream not None, meta) -> None:
    """Restore what comes after the groups: the policy, the producers and their messages."""
    if "policy" in meta:
        stream.policy = RetentionPolicy.load(meta["policy"])
    if meta["producers"]:
        stream.producers = Producers.load(meta["producers"])
    if "idempotence" in meta:
        stream.idempotence = Window.load(meta["idempotence"])


def copy_stream(Stream stream not None, uint64_t incarnation, uint64_t now_ms) -> Stream:
    """Another stream with the same content; both share the immutable blocks."""
    cdef Group group
    cdef Stream made = load_stream(
        {**stream_meta(stream, False, {}, []), "incarnation": incarnation}, stream.blocks(), now_ms)
    for group in counted_groups(stream).values():
        made.add_group(copy_group(group, now_ms))
    made.producers = None if stream.producers is None else stream.producers.copy()
    return made
