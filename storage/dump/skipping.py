"""Passing over values of other types in Redis' format, by their lengths: nothing is unpacked.

What a type byte above 21 means depends on the program that wrote it: 22 is a hash in Redis and in
Valkey, with different bytes.
"""

from __future__ import annotations

from millstream.errors import PayloadError
from millstream.storage.dump.reader import CutOffError, Reader

# Types that are no streams and strings, as they are written.
OTHER_TYPES = {
    **dict.fromkeys((1, 10, 14, 18), "a list"),
    **dict.fromkeys((2, 11, 20), "a set"),
    **dict.fromkeys((3, 5, 12, 17), "a sorted set"),
    **dict.fromkeys((4, 9, 13, 16, 22, 23, 24, 25, 29, 30, 31, 32), "a hash"),
    **dict.fromkeys((6, 7), "a module's value"),
    28: "an array",
    33: "a rate limiter",
}
# Valkey and Redis have other types above this one, with the same numbers.
COMMON_TYPE_MAX = 21
VALKEY_OTHER_TYPES = {
    **{kind: name for kind, name in OTHER_TYPES.items() if kind <= COMMON_TYPE_MAX},
    22: "a hash",
}

KEY_METADATA = 243  # in Valkey, the same number is the state of a slot import
CLASSES_MAX = 7

# A module's value is a sequence of these, each with its kind before it.
_END, _SIGNED, _UNSIGNED, _FLOAT, _DOUBLE, _STRING = range(6)
_IGNORABLE = 1
# The types of streams that added a part.
_WITH_COUNTERS, _WITH_ACTIVE_TIME, _WITH_WINDOW, _WITH_RELEASED = 19, 21, 26, 27
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_OF_MODULES, _OF_CLASSES = _LETTERS + "-_", _LETTERS + "_-"


def skip_key_metadata(reader: Reader) -> list[str]:
    """Pass over a key's metadata, which Redis 8.6 writes for modules; the names of its classes.
    PayloadError for metadata that must not be ignored."""
    names = []
    count = reader.length()
    if count > CLASSES_MAX:
        raise PayloadError("a key has metadata of too many classes")
    for _ in range(count):
        spec = int.from_bytes(reader.take(4), "little")
        name = _letters(spec >> 8, 4, _OF_CLASSES)
        if not spec & _IGNORABLE:
            raise PayloadError(f"the key has metadata of the class {name}, which is required")
        skip_module_value(reader)
        names.append(name)
    return names


def skip_module_value(reader: Reader) -> None:
    """Pass over a module's value, up to the mark of its end."""
    while (kind := reader.length()) != _END:
        if kind in (_SIGNED, _UNSIGNED):
            reader.length()
        elif kind in (_FLOAT, _DOUBLE):
            reader.skip(4 if kind == _FLOAT else 8)
        elif kind == _STRING:
            reader.skip_string()
        else:
            raise PayloadError(f"a module's value has a part of the unknown kind {kind}")


def module_name(number: int) -> str:
    """The nine letters of a module in the number that a file has for it, without its version."""
    return _letters(number >> 10, 9, _OF_MODULES)


def _letters(number: int, count: int, alphabet: str) -> str:
    """A name that has six bits for each letter."""
    return "".join(alphabet[number >> 6 * i & 63] for i in reversed(range(count)))


# ---------------------------------------------------------------- parts of a stream


def skip_many(reader: Reader, count: int, size_bytes: int) -> None:
    """Pass over `count` items of this size."""
    if count > reader.left // size_bytes:
        raise CutOffError("it is cut off")
    reader.skip(count * size_bytes)


def skip_stream(reader: Reader, kind: int) -> None:
    """Pass over a stream of this type."""
    for _ in range(2 * reader.length()):  # the keys and listpacks of nodes
        reader.skip_string()
    for _ in range(3 if kind < _WITH_COUNTERS else 8):  # length, IDs, entries added
        reader.length()
    for _ in range(reader.length()):
        skip_group(reader, kind)
    if kind >= _WITH_WINDOW:
        skip_window(reader)


def skip_group(reader: Reader, kind: int) -> None:
    """Pass over a group of a stream of this type."""
    reader.skip_string()
    for _ in range(2 if kind < _WITH_COUNTERS else 3):  # offset, entries read
        reader.length()
    for _ in range(reader.length()):  # pending entries: ID, time, deliveries
        reader.skip(24)
        reader.length()
    for _ in range(reader.length()):
        reader.skip_string()
        reader.skip(8 if kind < _WITH_ACTIVE_TIME else 16)
        skip_many(reader, reader.length(), 16)
    if kind >= _WITH_RELEASED:
        skip_many(reader, reader.length(), 16)


def skip_window(reader: Reader) -> None:
    """Pass over the messages of a stream's producers."""
    reader.length()
    reader.length()
    for _ in range(reader.length()):
        reader.skip_string()
        for _ in range(reader.length()):
            reader.skip_string()
            reader.id()
    reader.length()
    reader.length()
