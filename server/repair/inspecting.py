"""Lists the contents of a data directory, stream by stream, without a server.

A list uses only the index of the base, which is small compared with the data, so a directory of any
size is listed in bounded memory, even while a server uses it. Such a list shows the journals after
the base only as a number of bytes. With journals, all data is loaded as at the start of a server:
automatically for a small directory, otherwise on request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from millstream.commands.draft.tpolicy import EVICTS
from millstream.errors import DamageError, shown
from millstream.glob import matcher
from millstream.server.durability.directory_loader import LoadReport
from millstream.server.repair.checking import loader_of, new_keyspace
from millstream.server.repair.destination import without_data
from millstream.storage.blocks.entry_filter import EntryFilter
from millstream.storage.capture.ordering_snapshot import restore_ordering
from millstream.storage.files.disk import Disk, size_of
from millstream.storage.files.manifest import Manifest, load_manifest, read_manifest
from millstream.storage.files.snapshot_format import KeyRecord
from millstream.storage.files.snapshot_reader import SnapshotReader
from millstream.storage.groups.group import copied_rules
from millstream.storage.reservations.held import handed_out_id
from millstream.storage.streams.schedule_snapshot import summary
from millstream.storage.streams.stream import RetentionPolicy, Stream
from millstream.storage.streams.stream_snapshot import dump_stream

LOADED_AT_ONCE_BYTES = 64 << 20
_PENDING_BYTES = 36
# The rules of a group that are numbers, and their words in TGROUP.
_RULE_WORDS = {
    "timeout_ms": "TIMEOUT",
    "max_deliver": "MAXDELIVER",
    "max_in_flight": "MAXINFLIGHT",
    "consumer_ttl_ms": "CONSUMERTTL",
}
_TRIES = 5


@dataclass
class Ordering:
    """Reservations, held entries, lineage and similar properties of a stream, named as in TINFO.
    The row's `last_id` is the position: held entries and reservations come after it and are not in
    `entries`."""

    handed_out_id: tuple[int, int]
    reservations: int = 0
    oldest_reservation: tuple[int, int] | None = None
    held: int = 0
    held_bytes: int = 0
    writers: int = 0
    followed: bool = False
    sealed: bool = False
    parents: list[bytes] = field(default_factory=list)
    children: list[bytes] = field(default_factory=list)


@dataclass
class Row:
    """One key. A string only has `size_bytes`, its length. `first_id` is the ID of the first entry,
    or, from an index, a lower bound of it; `policy` is in the words of TPOLICY, `rules` has the
    rules of each managed group in those of TGROUP. `next_scheduled_ms` is the Unix time of the
    first scheduled entry. `ordering` is None for a stream without
    reservations (also past ones), lineage and followers."""

    database: int
    key: bytes
    kind: str
    size_bytes: int
    entries: int = 0
    first_id: tuple[int, int] | None = None
    last_id: tuple[int, int] | None = None
    groups: int = 0
    pending: int = 0
    blocks: int = 0
    policy: str = ""
    ordering: Ordering | None = None
    rules: dict[bytes, str] = field(default_factory=dict)
    scheduled: int = 0
    next_scheduled_ms: int | None = None


@dataclass
class Contents:
    """The result. `rows` are the first matching rows up to the limit, `matching` is the number of
    all matches; `with_journals` says whether the journals' effects are included."""

    files: list[tuple[str, int]]
    with_journals: bool
    created_ms: int | None = None
    rows: list[Row] = field(default_factory=list)
    matching: int = 0
    keys: int = 0
    entries: int = 0


def inspect_directory(
    disk: Disk, *, journals: bool | None, pattern: bytes | None, limit: int, now_ms: int
) -> Contents:
    """List a directory. `journals` None: include them if the directory is small. DataError when it
    cannot be read.

    If a server replaces the files meanwhile, the listing is repeated.
    """
    for left in reversed(range(_TRIES)):
        manifest = read_manifest(disk)
        if manifest is None:
            raise without_data(disk)
        try:
            return _inspect(disk, manifest, journals, pattern, limit, now_ms)
        except (FileNotFoundError, DamageError):
            if not left or read_manifest(disk) == manifest:
                load_manifest(disk)  # its error names the missing file
                raise
    raise AssertionError("the last try returns or raises")


def _inspect(
    disk: Disk,
    manifest: Manifest,
    journals: bool | None,
    pattern: bytes | None,
    limit: int,
    now_ms: int,
) -> Contents:
    files = [(name, size_of(disk, name)) for name in manifest.files]
    if journals is None:
        journals = sum(size for _, size in files) <= LOADED_AT_ONCE_BYTES
    contents = Contents(files, journals or not manifest.journals)
    rows = _loaded(disk, manifest, now_ms) if journals else _indexed(disk, manifest, contents)
    matches = matcher(pattern) if pattern is not None else _any
    for row in rows:
        contents.keys += 1
        contents.entries += row.entries
        if matches(row.key):
            contents.matching += 1
            if len(contents.rows) < limit:
                contents.rows.append(row)
    return contents


def _any(_: bytes) -> object:
    return True


# ---------------------------------------------------------------------------------------- the index


def _indexed(disk: Disk, manifest: Manifest, contents: Contents) -> Iterator[Row]:
    if manifest.base is None:
        return
    file = disk.read(manifest.base)
    try:
        reader = SnapshotReader(file)
        contents.created_ms = reader.summary.created_ms
        for section in range(len(reader.summary.sections)):
            for record in reader.records(section):
                yield _row_of_record(record, reader.meta(record))
    finally:
        file.close()


def _row_of_record(record: KeyRecord, meta: dict[str, Any]) -> Row:
    if record.kind != "stream":
        value = meta.get("value", b"")
        return Row(record.db, record.key, record.kind, len(value))
    first = None
    if record.pieces:
        kept_ms, kept_seq = meta["first_kept"]
        piece = record.pieces[0]
        first = max((kept_ms, kept_seq), (piece.min_ms, piece.min_seq))
    last_ms, last_seq = meta["last_id"]
    return Row(
        record.db,
        record.key,
        record.kind,
        sum(piece.length for piece in record.pieces),
        meta["length"],
        first,
        (last_ms, last_seq),
        len(meta["groups"]),
        sum(len(group["pending"]) // _PENDING_BYTES for group in meta["groups"]),
        sum(piece.blocks for piece in record.pieces),
        _policy_words(RetentionPolicy.load(meta["policy"]) if "policy" in meta else None),
        _ordering_of_meta(meta),
        {
            group["name"]: words
            for group in meta["groups"]
            if (words := _rules_words(group.get("rules", {})))
        },
        *(summary(meta["schedule"]) if "schedule" in meta else ()),
    )


def _ordering_of_meta(meta: dict[str, Any]) -> Ordering | None:
    """The same as from the loaded stream; this needs no blocks."""
    if not meta.keys() & {"held", "lineage", "followed"}:
        return None
    stream = Stream()
    stream.raise_last_id(*meta["last_id"])
    restore_ordering(stream, meta, 0)
    return _ordering(stream)


# ---------------------------------------------------------------------------------------- full load


def _loaded(disk: Disk, manifest: Manifest, now_ms: int) -> Iterator[Row]:
    keyspace = new_keyspace(now_ms)
    for _ in loader_of(disk, keyspace).read(manifest, LoadReport()):
        pass
    for database in keyspace.databases:
        for key in sorted(database.keys()):
            value = database.get(key)
            if isinstance(value, Stream):
                yield _row_of_stream(database.index, key, value)
            elif value is not None:
                yield Row(database.index, key, "string", len(value))


def _row_of_stream(db: int, key: bytes, stream: Stream) -> Row:
    _, blocks = dump_stream(stream, shared=True)
    return Row(
        db,
        key,
        "stream",
        sum(block.size_bytes for block in blocks),
        len(stream),
        stream.first_id,
        stream.last_id,
        len(stream.groups),
        sum(group.pending.count for group in stream.groups.values()),
        len(blocks),
        _policy_words(stream.policy),
        _ordering(stream),
        {
            name: words
            for name, group in stream.groups.items()
            if (words := _rules_words(copied_rules(group)))
        },
        *((len(stream.schedule), stream.schedule.next_due_ms) if stream.schedule else ()),
    )


def _rules_words(rules: dict[str, Any]) -> str:
    """The rules of a group, as a snapshot has them, in the words of TGROUP."""
    words: list[object] = []
    for rule, word in _RULE_WORDS.items():
        if rules.get(rule):
            words += [word, rules[rule]]
    if rules.get("backoff_ms"):
        words += ["BACKOFF", len(rules["backoff_ms"]), *rules["backoff_ms"]]
    if rules.get("dead_letter"):
        words += ["DEADLETTER", shown(rules["dead_letter"])]
    if rules.get("order"):
        kind, field, _ = rules["order"]
        words += ["ORDER", kind.decode(), *([shown(field)] if field else [])]
    if rules.get("run"):
        words += ["RUN", rules["run"]]
    if rules.get("where"):
        words += ["WHERE", EntryFilter(rules["where"]).count, *map(shown, rules["where"])]
    if rules.get("paused_until_ms"):
        words.append("PAUSE")
    return " ".join(map(str, words))


def _ordering(stream: Stream) -> Ordering | None:
    held, lineage = stream.held, stream.lineage
    if held is None and lineage is None and not stream.is_followed:
        return None
    found = Ordering(handed_out_id(stream), followed=stream.is_followed, sealed=stream.is_sealed)
    if held is not None:
        found.reservations, found.oldest_reservation = held.reservations, held.oldest_id
        found.held, found.held_bytes = held.entries, held.size_bytes
        found.writers = len(held.writers.by_name)
    if lineage is not None:
        found.parents, found.children = list(lineage.parents), list(lineage.children)
    return found


def _policy_words(policy: RetentionPolicy | None) -> str:
    """The retention policy in the words of TPOLICY."""
    if policy is None:
        return ""
    limits = {"MAXLEN": policy.max_len, "MAXAGE": policy.max_age_ms, "MAXBYTES": policy.max_bytes}
    hard = {
        "HARDLEN": policy.hard_len,
        "HARDAGE": policy.hard_age_ms,
        "HARDBYTES": policy.hard_bytes,
    }
    words = [f"{name} {limit}" for name, limit in limits.items() if limit]
    words.append("EXACT" if policy.exact else "APPROX")
    if policy.evict:
        words.append(f"EVICT {EVICTS[policy.evict].decode()}")
    words += [f"{name} {limit}" for name, limit in hard.items() if limit]
    return " ".join(words)
