"""One stream of a backup, into a running server.

The entries go to a key of their own, in pipelines of limited size. That key expires if this program
dies. At the end, TRESTORE completes the stream and moves it to its key in one step: readers see all
of it or nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import count
from typing import Any

import msgpack  # type: ignore[import-untyped]

from millstream.remote import info_fields
from millstream.server.durability.directory_loader import LoadReport
from millstream.server.repair.checking import load_strictly
from millstream.server.repair.destination import without_data
from millstream.storage.capture.ordering_snapshot import ordering_meta
from millstream.storage.files.disk import Disk
from millstream.storage.files.manifest import load_manifest
from millstream.storage.keyspace.cluster_slots import cluster_slot_of
from millstream.storage.streams.stream import Stream
from millstream.storage.streams.stream_snapshot import dump_stream
from millstream.tools.tool_connection import ToolConnection, ToolError, Word, is_error

_ENTRIES_MAX = 500  # in one pipeline
_BYTES_MAX = 1 << 20
_EXPIRY_MS = 3_600_000  # of the key with the entries, if this program dies


class NoStream(Exception):
    """The backup has no such stream."""


class Unwanted(Exception):
    """The server has refused a request. The text is its error."""


class BackedUpStream:
    """A stream of a backup: its entries, and everything else as TRESTORE takes it."""

    def __init__(self, disk: Disk, db: int, key: bytes, now_ms: int) -> None:
        """Load the whole backup. NoStream, or DataError when it is damaged. `evicted_before_ms` is
        the time before which its MAXAGE policy evicts entries, if there are any."""
        manifest = load_manifest(disk)
        if manifest is None:
            raise NoStream(str(without_data(disk)))
        keyspace = load_strictly(disk, manifest, LoadReport(), now_ms)
        database = keyspace.databases[db]
        value = database.table.get(key)
        if not isinstance(value, Stream):
            raise NoStream(f"{disk.directory} has no such stream in database {db}")
        self.stream = value
        meta: dict[str, Any] = {**dump_stream(value)[0], **ordering_meta(value)}
        self.evicted_before_ms: int | None = None
        if value.policy is not None and value.policy.max_age_ms:
            before_ms = now_ms - value.policy.max_age_ms
            oldest = value.range(0, 0, None, 1)
            if oldest and oldest[0][0] < before_ms:
                self.evicted_before_ms = before_ms
        for part in ("held", "schedule"):
            if part in meta:
                meta[part] = meta[part].dump()
        if database.expiry_ms(key):
            meta["expires_ms"] = database.expiry_ms(key)
        self._meta = meta

    def drop_policy(self) -> None:
        self._meta.pop("policy", None)
        self.evicted_before_ms = None

    @property
    def state(self) -> bytes:
        return bytes(msgpack.packb(self._meta))

    def entries(self) -> Iterator[tuple[int, int, Sequence[bytes]]]:
        ms = seq = 0
        while found := self.stream.range(ms, seq, None, _ENTRIES_MAX):
            yield from found
            ms, seq, _ = found[-1]
            seq += 1
            if seq == 1 << 64:
                ms, seq = ms + 1, 0
                if ms == 1 << 64:
                    return


def upload(
    url: str,
    timeout_s: float,
    stream: BackedUpStream,
    key: bytes,
    replace: bool,
    warn: Callable[[str], None],
) -> str:
    """Restore the stream at this key. Returns the name of the server. Unwanted when it
    refuses or cannot be reached, ToolError when the connection breaks; the key is then as it
    was. `warn` gets a sentence if the memory of the server could not be checked."""
    source = _name_beside(key)
    try:
        connection = ToolConnection(url, timeout_s)
    except ToolError as error:
        raise Unwanted(error.message) from None
    with closing(connection) as server:
        if not replace:
            (found,) = server.pipeline([["EXISTS", key]])
            if found == 1:  # an error is no answer: TRESTORE asks again
                raise Unwanted("BUSYKEY Target key name already exists.")
        unchecked = _require_room(server, stream)
        if unchecked is not None:
            warn(unchecked)
        try:
            for requests in _pipelines(stream, source):
                _require_success(server.pipeline(requests))
            options = ["REPLACE"] if replace else []
            _require_success(_complete(server, ["TRESTORE", source, key, stream.state, *options]))
        except BaseException:
            _remove(url, timeout_s, source)
            raise
        return server.name


def _name_beside(key: bytes) -> bytes:
    """A new name that begins with the key, as rules of users may require, and that is in its slot,
    as a cluster requires: one of about 16,384 is."""
    slot, begin = cluster_slot_of(key), key + b".restoring-" + os.urandom(8).hex().encode()
    names = (b"%b-%d" % (begin, number) for number in count())
    return next(name for name in names if cluster_slot_of(name) == slot)


def _require_room(server: ToolConnection, stream: BackedUpStream) -> str | None:
    """Unwanted if the server would evict entries of other streams to make room. A warning if
    that is unknown, because the user may not call INFO."""
    (text,) = server.pipeline([["INFO", "memory"]])
    if not isinstance(text, bytes):
        return (
            f"the server may evict entries of other streams to make room, which cannot be checked"
            f" without INFO: {text}"
        )
    found = info_fields(text)
    limit, used = int(found.get("maxmemory", 0)), int(found.get("used_memory", 0))
    need = stream.stream.memory_bytes
    if found.get("maxmemory_policy") == "allstreams-oldest" and 0 < limit < used + need:
        raise Unwanted(
            f"the stream needs about {need} bytes, {max(0, limit - used)} of maxmemory are free,"
            " and maxmemory-policy allstreams-oldest would evict entries of other streams: raise"
            " maxmemory first"
        )
    return None


def _complete(server: ToolConnection, request: list[Word]) -> Sequence[object]:
    """Send TRESTORE. If the connection breaks, the server may have executed it nevertheless."""
    try:
        return server.pipeline([request])
    except ToolError as error:
        raise ToolError(
            f"{error}; it is unknown if the stream was restored, because the reply to TRESTORE is"
            " missing: look at the key before you try again"
        ) from error


def _pipelines(stream: BackedUpStream, source: bytes) -> Iterator[list[list[Word]]]:
    """XADD for each entry. The second request of each pipeline lets the key expire later."""
    requests: list[list[Word]] = []
    size_bytes = 0
    for ms, seq, words in stream.entries():
        requests.append(["XADD", source, f"{ms}-{seq}", *words])
        if len(requests) == 1:
            requests.append(["PEXPIRE", source, _EXPIRY_MS])
        size_bytes += sum(map(len, words))
        if len(requests) > _ENTRIES_MAX or size_bytes >= _BYTES_MAX:
            yield requests
            requests, size_bytes = [], 0
    if requests:
        yield requests


def _require_success(replies: Sequence[object]) -> None:
    for reply in replies:
        if is_error(reply):
            raise Unwanted(str(reply))


def _remove(url: str, timeout_s: float, source: bytes) -> None:
    """Remove the entries that were appended so far; if that fails, the key expires."""
    with suppress(ToolError), closing(ToolConnection(url, timeout_s)) as server:
        server.pipeline([["DEL", source]])
