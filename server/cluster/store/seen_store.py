"""The file with the contents of the store that a node has seen last, in its data directory.

A node leads or follows in a term only when the record of its shard in that term is in the file. So
the members of a shard together know the newest record, also when etcd is lost, and a node that was
restarted ignores an etcd with an older state. If etcd does not answer, the node takes part
with what is in the file (`Member.recall`).

Values that last only as long as a lease are not kept, except the addresses of nodes, and the orders
to change members: a member that may have left does not count after a restart.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millstream.server.cluster.store.records import (
    ELECTION,
    LEASE,
    LOCK,
    NODE,
    SHARD,
    RecordError,
    ShardRecord,
    decode,
)
from millstream.server.cluster.store.store import Contents, Value
from millstream.server.config.file_replacement import replace_file

log = logging.getLogger("millstream.cluster")

NAME = "etcd.json"
_VERSION = 1
_PASSING = (LEASE, ELECTION, LOCK)


class SeenStore:
    """The file, for a node of this cluster. `values` were seen last, at `revision`."""

    def __init__(self, path: Path, cluster: str) -> None:
        self._path = path
        self.cluster = cluster
        self._kept: dict[str, str] | None = None  # as in the file; None: not known
        self._problem = ""  # as the log has said
        self.revision = 0
        self.values: dict[str, str] | None = None  # to be kept, whether or not they are in the file

    def load(self) -> Contents | None:
        """The contents in the file, without versions and leases, with which no transaction would be
        carried out. None if there is no file, or it is of no use for this cluster."""
        try:
            found = decode_seen(self._path.read_bytes(), self.cluster)
        except FileNotFoundError:
            return None
        except OSError as problem:
            log.error("%s cannot be read: %s", self._path, problem.strerror)
            return None
        except ValueError as problem:
            log.error("%s is not used: %s", self._path, problem)
            return None
        self._kept = self.values = _texts(found)
        self.revision = found.revision
        return found

    def note(self, contents: Contents) -> frozenset[str]:
        """Remember these contents; the names of what is to be written because of them."""
        kept, written = values_to_keep(contents, self.values or {}), self._kept or {}
        self.values, self.revision = kept, contents.revision
        names = kept.keys() | written.keys()
        return frozenset(name for name in names if kept.get(name) != written.get(name))

    def write(self) -> bool:
        """Write what was noted last; on return it is on the disk. If that fails, the log says so,
        and the result is false. On any thread, as long as nothing is noted meanwhile."""
        kept = self.values or {}
        data = encode_seen(self.cluster, self.revision, kept)
        try:
            replace_file(self._path, data, mode=0o600)
        except OSError as problem:
            reason = problem.strerror or str(problem)  # not the name of the temporary file
            if self._problem != reason:
                self._problem = reason
                log.error("%s cannot be written: %s", self._path, reason)
            return False
        self._kept, self._problem = kept, ""
        return True


def values_to_keep(contents: Contents, before: Mapping[str, str]) -> dict[str, str]:
    """The part of these contents that is kept. Members that do not run keep their last addresses,
    which are in `before`."""
    kept = {
        name: _text(value)
        for name, value in contents.values.items()
        if not name.startswith(_PASSING)
    }
    for name, value in contents.values.items():
        if name.startswith(SHARD):
            addresses = {NODE + node for node in _members(name, value)} & before.keys()
            kept |= {one: before[one] for one in addresses - kept.keys()}
    return kept


def contents_of(revision: int, values: Mapping[str, str]) -> Contents:
    """Versions are 0: a transaction that compares them fails, so nothing is written by mistake."""
    found = {
        key: Value(text.encode("utf-8", "surrogateescape"), 0, 0) for key, text in values.items()
    }
    return Contents(revision, found)


def _members(name: str, value: Value) -> tuple[str, ...]:
    try:
        return decode(ShardRecord, value.data, name).members
    except RecordError:
        return ()


def _texts(contents: Contents) -> dict[str, str]:
    return {name: _text(value) for name, value in contents.values.items()}


def _text(value: Value) -> str:
    return value.data.decode("utf-8", "surrogateescape")


def encode_seen(cluster: str, revision: int, values: Mapping[str, str]) -> bytes:
    document = {"version": _VERSION, "cluster": cluster, "revision": revision, "values": values}
    return json.dumps(document, indent=1).encode() + b"\n"


def cluster_of(path: Path) -> str:
    """The name of the cluster whose file this is; "" if that is not known."""
    try:
        name = json.loads(path.read_bytes())["cluster"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return ""
    return name if isinstance(name, str) else ""


def decode_seen(data: bytes, cluster: str) -> Contents:
    """ValueError if this is not what a node of this cluster has seen."""
    try:
        document: Any = json.loads(data)
        version, name = document["version"], document["cluster"]
        revision, values = document["revision"], document["values"]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise ValueError("it is damaged") from None
    if version != _VERSION:
        raise ValueError(f"it has version {version}, which this program does not know")
    if name != cluster:
        raise ValueError(f"it is of the cluster {name}, and this node is one of {cluster}")
    if type(revision) is not int or not isinstance(values, dict):
        raise ValueError("it is damaged")
    if not all(isinstance(text, str) for text in values.values()):
        raise ValueError("it is damaged")
    return contents_of(revision, values)
