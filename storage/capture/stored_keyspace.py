"""A keyspace as persistence uses it: captured for a snapshot, and restored from one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from millstream.storage.blocks.block import Block
from millstream.storage.keyspace.keyspace import Keyspace, Source

# Loaded with the first snapshot that is written or read.
if TYPE_CHECKING:
    from millstream.storage.capture.capture import Capture
    from millstream.storage.capture.captured_keys import Captured
    from millstream.storage.capture.small_loader import SmallLoader
    from millstream.storage.capture.small_streams import SmallStreams


if TYPE_CHECKING:

    class Writer(Protocol):
        def add(self, captured: Captured | SmallStreams) -> None: ...
        def finish(self, global_meta: dict[str, Any]) -> None: ...


class StoredKeyspace:
    """The keys of a keyspace, and the state that belongs to no key, in the forms of a snapshot."""

    def __init__(self, keyspace: Keyspace) -> None:
        self._keyspace = keyspace

    def begin_capture(self) -> Capture:
        """Begin a capture of the current keyspace."""
        from millstream.storage.capture.capture import Capture

        return Capture(self._keyspace)

    def write_to(self, writer: Writer, keys_per_step: int) -> None:
        """Write everything as a base, at once."""
        capture = self.begin_capture()
        while (captured := capture.step(keys_per_step)) is not None:
            for one in captured:
                writer.add(one)
        capture.close()
        writer.finish(self.global_meta())

    def global_meta(self) -> dict[str, Any]:
        """The state that belongs to no key, as msgpack-able values."""
        keyspace = self._keyspace
        steady_ms = max(keyspace.steady_ms, keyspace.newest_steady_ms)
        meta: dict[str, Any] = {"incarnation": keyspace.incarnation, "steady_ms": steady_ms}
        if keyspace.has_ordering:
            meta["ordering"] = True
        if keyspace.has_rules:
            meta["rules"] = True
        if keyspace.recorded_promise_ms:
            meta["clock"] = keyspace.recorded_promise_ms
        if keyspace.histories:
            meta["histories"] = [list(line) for line in keyspace.histories]
        if keyspace.line_terms:
            meta["terms"] = dict(keyspace.line_terms)
        if keyspace.source is not None:
            meta["source"] = keyspace.source._asdict()
        if keyspace.dropped_strings:
            meta["dropped_strings"] = [list(place) for place in keyspace.dropped_strings]
        if keyspace.slot_states or keyspace.slot_states.epoch:
            meta["slots"] = keyspace.slot_states.dump()
        return meta

    def restore_global(self, meta: dict[str, Any]) -> None:
        """Restore the result of global_meta."""
        keyspace = self._keyspace
        keyspace.incarnation = max(keyspace.incarnation, meta["incarnation"])
        keyspace.note_steady(meta.get("steady_ms", 0))
        keyspace.has_ordering = keyspace.has_ordering or "ordering" in meta
        keyspace.note_promise(meta.get("clock", 0))
        keyspace.histories = tuple((name, first) for name, first in meta.get("histories", ()))
        keyspace.line_terms = dict(meta.get("terms", {}))
        if "source" in meta:
            keyspace.source = Source(**meta["source"])
        keyspace.dropped_strings = {(db, key) for db, key in meta.get("dropped_strings", ())}
        if "slots" in meta:
            keyspace.slot_states.load(meta["slots"])

    def restore(
        self, db: int, key: bytes, kind: str, meta: dict[str, Any], blocks: list[Block]
    ) -> None:
        """Restore a captured key; ValueError when its parts are inconsistent."""
        from millstream.storage.capture.key_restoring import restore

        restore(self._keyspace, db, key, kind, meta, blocks)

    def restore_small(self, small: SmallLoader, most: int) -> int:
        """Restore up to `most` small streams; their number, 0 at the end."""
        return small.step(self._keyspace, most)
