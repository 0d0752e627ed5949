"""The effects on values and expiries: how each is named when it is recorded, and how it is applied.

SET removes the expiry; UPDATE, EXTEND and PATCH do not.
"""

from __future__ import annotations

from millstream.commands.runtime.effects import EVERY_WORD, effect
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.keyspace.string_changes import extend, patch, string_bytes

SET = b"SET"


@effect(SET)
def apply_set(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """SET key value: replace any value and remove the expiry."""
    key, value = words
    keyspace.databases[db_index].set(key, value)


UPDATE = b"UPDATE"


@effect(UPDATE)
def apply_update(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """UPDATE key value: change the value; the expiry stays."""
    key, value = words
    keyspace.databases[db_index].set(key, value, True)


EXTEND = b"EXTEND"


@effect(EXTEND)
def apply_extend(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """EXTEND key bytes: append bytes to a string."""
    key, more = words
    db = keyspace.databases[db_index]
    if string_bytes(db, key) is None:
        raise ValueError(f"EXTEND of a key that has no string: {key!r}")
    extend(db, key, more)


PATCH = b"PATCH"


@effect(PATCH)
def apply_patch(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """PATCH key offset bytes: overwrite a part of a string, which is padded with zeros if it is
    shorter."""
    key, offset, part = words
    db = keyspace.databases[db_index]
    if string_bytes(db, key) is None:
        raise ValueError(f"PATCH of a key that has no string: {key!r}")
    patch(db, key, int(offset), part)


PADDED = b"PADDED"


@effect(PADDED)
def apply_padded(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """PADDED key offset bytes: a new string, zeros up to the offset and then these bytes."""
    key, offset, part = words
    db = keyspace.databases[db_index]
    if db.get(key) is not None:
        raise ValueError(f"PADDED of a key that is there: {key!r}")
    patch(db, key, int(offset), part)


EXPIRE = b"EXPIRE"


@effect(EXPIRE)
def apply_expire(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """EXPIRE key at-ms: the key expires at this time; 0: never."""
    key, at_ms = words
    db = keyspace.databases[db_index]
    if db.get(key) is None:
        raise ValueError(f"EXPIRE of a key that is not there: {key!r}")
    db.set_expiry(key, int(at_ms))


DEL = b"DEL"


@effect(DEL, keys=EVERY_WORD)
def apply_del(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """DEL key [key ...]."""
    for key in words:
        keyspace.databases[db_index].delete(key)
