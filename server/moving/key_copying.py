"""Copies the keys of a running server into another one, by DUMP and RESTORE.

This needs no replication, which managed services do not allow. Each key is copied at a moment of
its own: the copy is not a point in time. Run it while writers run, then once more after they have
stopped, with only the keys that have changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from millstream.cli_error import CliError
from millstream.errors import counted, printable, readable
from millstream.remote import info_fields
from millstream.server.moving.import_report import left_out_line
from millstream.server.moving.key_states import Filters, Place, State, is_same_expiry
from millstream.server.moving.server_side import ServerSide
from millstream.storage.dump.base_making import LeftOut, shown_key
from millstream.storage.dump.digests import GroupRow
from millstream.tools.tool_connection import is_error, is_of_other_node

DUMPS_IN_FLIGHT = 4
BULK_MAX_BYTES = 512 << 20  # of a server that does not show its proto-max-bulk-len
_GONE = b"none"


# Gets the number of keys that were looked at, and that of all keys.
Tell = Callable[[int, int], object]


@dataclass(frozen=True)
class CopyOptions:
    """The choice of keys, and what happens to keys that exist. `databases` maps numbers of the
    source to those of the target; None: all that have keys, with the same numbers. `changed`: only
    streams that differ, and all strings; `delete`: keys that are gone at the source are removed."""

    patterns: tuple[bytes, ...] = ()
    databases: dict[int, int] | None = None
    strings: bool = True
    may_leave_out: bool = True
    replace: bool = False
    changed: bool = False
    delete: bool = False


@dataclass
class Copied:
    """The result of a copy. `expiries` is the number of streams of which only the expiry differed.
    `gone` has the keys that only the target has, in the databases that were copied;
    `not_compared` the other databases of the target that have keys."""

    streams: int = 0
    strings: int = 0
    bytes: int = 0
    unchanged: int = 0
    expiries: int = 0
    expired: int = 0
    deleted: int = 0
    gone: list[Place] = field(default_factory=list)
    not_compared: list[int] = field(default_factory=list)
    left_out: dict[str, LeftOut] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        gone = [{"db": number, "key": shown_key(key)} for number, key in self.gone]
        return {**asdict(self), "gone": gone}


class Copy:
    """One copy between two servers. CliError with one sentence when it fails: keys that were copied
    before stay."""

    def __init__(self, source: ServerSide, target: ServerSide, options: CopyOptions) -> None:
        self.copied = Copied()
        self._source = source
        self._target = target
        self._options = options
        self._filters = Filters(options.patterns, None, options.strings)
        self._most_bytes = BULK_MAX_BYTES
        self._looked_at = 0
        self._kept: dict[int, set[bytes]] = {}  # by database of the target: keys of the source

    def run(self, tell: Tell) -> Copied:
        """Copy everything; `tell` is called after each part."""
        self._require_two()
        self._most_bytes = self._bulk_max_bytes()
        pairs = self._options.databases
        if pairs is None:
            pairs = {number: number for number in self._source.databases()}
        total = sum(map(self._size_of, pairs))
        for number, there in sorted(pairs.items()):
            for keys in self._source.keys(number):
                wanted = [key for key in keys if self._filters.has((number, key))]
                self._copy_keys(number, there, wanted)
                self._looked_at += len(keys)
                tell(self._looked_at, total)
        if self._options.changed:
            self._find_gone(pairs)
        self.copied.notes = self._filters.unmatched()
        return self.copied

    def _require_two(self) -> None:
        """CliError if both connections reach the same server."""
        ids = [
            info_fields(side.connection.call("INFO", "server")).get("run_id")
            for side in (self._source, self._target)
        ]
        if ids[0] is not None and ids[0] == ids[1]:
            raise CliError(f"{self._source.name} and {self._target.name} are the same server")

    def _bulk_max_bytes(self) -> int:
        (reply,) = self._target.connection.pipeline([["CONFIG", "GET", "proto-max-bulk-len"]])
        if is_error(reply) or len(reply) < 2 or not reply[1].isdigit():
            return BULK_MAX_BYTES
        return int(reply[1])

    def _size_of(self, database: int) -> int:
        self._source.select(database)
        return int(self._source.connection.call("DBSIZE"))

    # ------------------------------------------------------------ keys

    def _copy_keys(self, number: int, there: int, keys: list[bytes]) -> None:
        self._source.select(number)
        self._target.select(there)
        wanted, same = [], []
        for key, kind in zip(keys, _kinds(self._source, keys), strict=True):
            if not self._takes(kind):
                self._leave_out(number, key, kind)
                continue
            self._kept.setdefault(there, set()).add(key)
            if kind == b"stream" and self._options.changed and self._is_same(key):
                same.append(key)
            else:
                wanted.append((key, kind))
        self._match_expiries(number, same)
        for at in range(0, len(wanted), DUMPS_IN_FLIGHT):
            self._copy_some(number, there, wanted[at : at + DUMPS_IN_FLIGHT])

    def _takes(self, kind: bytes) -> bool:
        """True if keys of this type are copied."""
        return kind == b"stream" or (kind == b"string" and self._options.strings)

    def _leave_out(self, number: int, key: bytes, kind: bytes) -> None:
        if kind == _GONE:
            return
        what = kind.decode("utf-8", "replace")
        if kind != b"string" and not self._options.may_leave_out:
            raise CliError(
                f"{self._source.name} has {_shown(number, key)}, which is a {what}: only streams"
                " and strings are copied; --other skip leaves it out"
            )
        (usage,) = self._source.connection.pipeline([["MEMORY", "USAGE", key]])
        left_out = self.copied.left_out.setdefault(what, LeftOut())
        left_out.add(shown_key(key), usage if isinstance(usage, int) else 0)

    def _is_same(self, key: bytes) -> bool:
        """True if counters, last ID and groups of a stream are those of the target."""
        if _kinds(self._target, [key]) != [b"stream"]:
            return False
        ours, theirs = self._source.stream(key), self._target.stream(key)
        return ours is not None and theirs is not None and _is_like(ours, theirs)

    def _match_expiries(self, number: int, keys: list[bytes]) -> None:
        """Give streams that are the same otherwise the expiry that they have at the source."""
        differing: list[tuple[bytes, int | None]] = []
        for key, ours, theirs in zip(
            keys, self._source.expiries(keys), self._target.expiries(keys), strict=True
        ):
            if not is_same_expiry(ours, theirs):
                differing.append((key, ours[0]))
        replies = self._target.connection.pipeline(
            [
                ["PERSIST", key] if at_ms is None else ["PEXPIREAT", key, at_ms]
                for key, at_ms in differing
            ]
        )
        for (key, _), reply in zip(differing, replies, strict=True):
            if is_error(reply):
                shown = _shown(number, key)
                raise CliError(f"{self._target.name} refuses the expiry of {shown}: {reply}")
        self.copied.expiries += len(differing)
        self.copied.unchanged += len(keys) - len(differing)

    def _copy_some(self, number: int, there: int, some: list[tuple[bytes, bytes]]) -> None:
        """Copy a few keys, whose dumps are in memory together."""
        keys = [key for key, _ in some]
        dumps = self._source.connection.pipeline([["DUMP", key] for key in keys])
        expiries = self._source.expiries(keys)
        now_ms = time.time_ns() // 1_000_000
        requests, sent = [], []
        for (key, kind), dump, (at_ms, _) in zip(some, dumps, expiries, strict=True):
            if dump is None:  # deleted meanwhile
                self._kept[there].discard(key)
                continue
            self._require_dump(number, key, dump)
            if at_ms is not None and at_ms <= now_ms:
                self.copied.expired += 1
                self._kept[there].discard(key)
                continue
            words: list[bytes | str | int] = ["RESTORE", key, at_ms or 0, dump, "ABSTTL"]
            if self._options.replace or self._options.changed:
                words.append("REPLACE")
            requests.append(words)
            sent.append((key, kind, len(dump)))
        replies = self._target.connection.pipeline(requests)
        for (key, kind, size_bytes), reply in zip(sent, replies, strict=True):
            if is_error(reply):
                raise CliError(self._refusal(number, key, reply))
            self.copied.bytes += size_bytes
            self.copied.streams += kind == b"stream"
            self.copied.strings += kind == b"string"

    def _require_dump(self, number: int, key: bytes, dump: Any) -> None:
        if is_error(dump):
            raise CliError(f"{self._source.name}: {_shown(number, key)} cannot be dumped: {dump}")
        if len(dump) > self._most_bytes:
            raise CliError(
                f"the dump of {_shown(number, key)} has {len(dump)} bytes, and {self._target.name}"
                f" takes {self._most_bytes}: its directive proto-max-bulk-len"
            )

    def _refusal(self, number: int, key: bytes, error: Exception) -> str:
        shown, reason = _shown(number, key), str(error)
        if is_of_other_node(error):
            return _elsewhere(self._target, shown, reason)
        if reason.startswith("BUSYKEY"):
            return f"{shown} exists at {self._target.name}: --replace replaces it"
        if "version or checksum" in reason or "Bad data format" in reason:
            return (
                f"{self._target.name} does not load {shown}: {reason}; it may be older than"
                f" {self._source.name}"
            )
        return f"{self._target.name} refuses {shown}: {reason}"

    # ------------------------------------------------------------ keys that are gone

    def _find_gone(self, pairs: dict[int, int]) -> None:
        """Name the keys that only the target has, and delete them if that is wanted. Databases
        that were not copied are left alone: their keys are not those of the source."""
        for there in sorted(set(pairs.values())):
            numbers = [number for number, target in pairs.items() if target == there]
            for place in self._only_at_target(there, numbers):
                self.copied.gone.append(place)
                if self._options.delete:
                    self.copied.deleted += self._target.connection.call("DEL", place[1])
        if self._options.databases is None:
            others = set(self._target.databases()) - set(pairs.values())
            self.copied.not_compared = sorted(others)

    def _only_at_target(self, there: int, numbers: list[int]) -> Iterator[Place]:
        """The keys in a database of the target that none of these of the source has now."""
        kept = self._kept.get(there, set())
        for keys in self._target.keys(there):
            others = [key for key in keys if key not in kept and self._filters.has((there, key))]
            kinds = _kinds(self._target, others)
            own = [key for key, kind in zip(others, kinds, strict=True) if self._takes(kind)]
            for number in numbers:
                self._source.select(number)
                kinds = _kinds(self._source, own)
                own = [key for key, kind in zip(own, kinds, strict=True) if not self._takes(kind)]
            for key in own:
                yield there, key


def _kinds(side: ServerSide, keys: list[bytes]) -> list[bytes]:
    """The types of keys of the selected database. CliError if the server does not tell one."""
    kinds = side.connection.pipeline([["TYPE", key] for key in keys])
    for key, kind in zip(keys, kinds, strict=True):
        if is_of_other_node(kind):
            raise CliError(_elsewhere(side, f'key "{printable(readable(key))}"', str(kind)))
        if is_error(kind):
            raise CliError(f"{side.name}: {kind}")
    return kinds


def _elsewhere(side: ServerSide, shown: str, reason: str) -> str:
    return (
        f"{shown} belongs to another node of the cluster than {side.name} ({reason}), and a copy"
        " has one target: copy into the gateway of `millstream serve --shards`, which listens on"
        " the port before those of the nodes, or into a server without slots, and make the"
        " directories of nodes from its directory with `millstream cluster split`"
    )


def _is_like(ours: State, theirs: State) -> bool:
    """True if two streams have the same counters, last ID and groups, as far as both are known."""
    for one, other in (
        (ours.entries_added, theirs.entries_added), (ours.max_deleted_id, theirs.max_deleted_id)
    ):  # fmt: skip
        if one is not None and other is not None and one != other:
            return False
    has_read = ours.has_entries_read and theirs.has_entries_read
    mine, its = (
        (state.length, state.last_id, _groups(state, has_read=has_read)) for state in (ours, theirs)
    )
    return mine == its


def _groups(state: State, *, has_read: bool) -> list[GroupRow]:
    """The groups as they are copied: without a consumer that has no name."""
    return [
        group._replace(
            consumers=[name for name in group.consumers if name],
            entries_read=group.entries_read if has_read else -1,
        )
        for group in sorted(state.groups.values())
    ]


def _shown(number: int, key: bytes) -> str:
    return f'key "{printable(readable(key))}" of database {number}'


def report_lines(copied: Copied, source: str, target: str) -> list[str]:
    """The result for the terminal."""
    lines = [left_out_line(what, asdict(keys)) for what, keys in copied.left_out.items()]
    lines += [f"note: {note}" for note in copied.notes]
    if copied.expired:
        lines.append(f"left out: {copied.expired} expired")
    for number in copied.not_compared:
        lines.append(
            f"database {number} has keys only at {target}: they are left; --db {number} compares it"
        )
    for number, key in copied.gone:
        done = "deleted" if copied.deleted else "--delete removes it"
        lines.append(f"gone at the source: {_shown(number, key)}: {done}")
    unchanged = f", {copied.unchanged} unchanged" if copied.unchanged else ""
    if copied.expiries:
        unchanged += f", {copied.expiries} with a new expiry"
    lines.append(
        f"{target}: {counted(copied.streams, 'stream')} and {counted(copied.strings, 'string')}"
        f" copied, {counted(copied.bytes, 'byte')}{unchanged}"
    )
    lines.append(
        f"This is not a point in time of {source}: stop its writers, then copy again with"
        " --changed."
    )
    return lines
