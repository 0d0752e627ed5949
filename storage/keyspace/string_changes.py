"""Changes of a part of a string: appending to it, and overwriting bytes of it."""

from __future__ import annotations

from millstream.storage.keyspace.database import GROWING, Database, changed_string
from millstream.storage.keyspace.keyspace_core import patched

# A longer string is patched in place.
PATCHED_IN_PLACE_BYTES = 65_536


def string_bytes(db: Database, key: bytes) -> int | None:
    """The length of the string at a key; None for a missing key or another type."""
    value = db.table.get(key)
    if not isinstance(value, bytes) or (db.expiries and db.has_expired(key)):
        return None
    return len(db.append_buffers[key] if value is GROWING else value)


def extend(db: Database, key: bytes, more: bytes) -> int:
    """Append to the string at a key and return its new length. The time does not depend on the
    length unless the string was read since the last append. The expiry does not change."""
    db.before_change(key)
    text = _buffer_of(db, key)
    text += more
    _note_changed(db, key)
    return len(text)


def patch(db: Database, key: bytes, offset: int, part: bytes) -> int:
    """Overwrite a part of the string at a key and return its new length. A missing key counts
    as an empty string, and a shorter string is padded with zeros. The expiry does not change. A
    long string is changed in place unless it was read since the last change."""
    end = offset + len(part)
    size_bytes = string_bytes(db, key) or 0
    is_growing = size_bytes > 0 and key in db.append_buffers
    if not is_growing and (size_bytes < PATCHED_IN_PLACE_BYTES or end > 2 * size_bytes):
        old = bytes(db.table[key]) if size_bytes else b""
        made = changed_string(patched(old, offset, part))
        db.set(key, made, True)
        return len(made)
    db.before_change(key)
    text = _buffer_of(db, key)
    if len(text) < end:
        text += bytes(end - len(text))
    text[offset:end] = part
    _note_changed(db, key)
    return len(text)


def _buffer_of(db: Database, key: bytes) -> bytearray:
    """The string at a key in the form that can be changed in place."""
    value = db.table[key]
    if value is GROWING:
        return db.append_buffers[key]
    text = db.append_buffers[key] = bytearray(value)
    db.table[key] = GROWING
    return text


def _note_changed(db: Database, key: bytes) -> None:
    """Record that a string was changed in place."""
    if db.keyspace.touching:
        db.note_use(key, GROWING)
    db.mark_ready(key)
