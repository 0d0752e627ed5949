"""Packs the positions of many streams into a short text, for the offsets in Spark's checkpoint.

Spark writes an offset for every batch and may resume from any of them, also on another machine, so
each offset must contain every stream. The keys are sorted, and each key is stored without the
prefix that it shares with the key before it. The numbers are stored by column, as differences from
the minimum of the column. Bytes of equal significance are stored together: the IDs of active
streams differ in two or three bytes. Keys and numbers are compressed and encoded in base64.

Equal positions give equal texts as long as the same zlib compresses them.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

VERSION = 1
LEVEL = 6

# One stream's ID (two numbers), the entries added up to it (None: unknown), its incarnation.
Row = tuple[int, int, int | None, int]
Keys = tuple[bytes, ...]
Column = npt.NDArray[np.uint64]

_COLUMNS = 4
_NUMBER_BYTES = 8


class PackError(ValueError):
    """A packed value that cannot be unpacked. The text says why."""


def pack(keys: Keys, rows: Sequence[Row]) -> list[Any]:
    """The version, the number of streams, their keys as text, their rows as text. `keys` are
    sorted."""
    return [VERSION, len(keys), _pack_keys(keys), _text(_pack_rows(rows))]


def unpack(packed: Sequence[Any]) -> tuple[Keys, list[Row]]:
    """The keys and rows given to `pack`. PackError for another version or a damaged value."""
    if not packed or packed[0] != VERSION:
        raise PackError(f"its version is {packed[:1]}, and this millstream reads [{VERSION}]")
    try:
        _, count, keys, rows = packed
        return _unpack_keys(keys, count), _unpack_rows(_data(rows), count)
    except (ValueError, TypeError, zlib.error, binascii.Error) as error:
        raise PackError(f"it is damaged: {error}") from error


# ------------------------------------------------------------------------------------------- keys
# The streams of a query seldom change from one batch to the next, so the last results are cached.


@lru_cache(maxsize=4)
def _pack_keys(keys: Keys) -> str:
    shared = [_shared(one, next_) for one, next_ in pairwise((b"", *keys))]
    rests = [key[start:] for key, start in zip(keys, shared, strict=True)]
    lengths = [len(rest) for rest in rests]
    return _text(b"".join([_planes(shared), _planes(lengths), *rests]))


@lru_cache(maxsize=4)
def _unpack_keys(text: str, count: int) -> Keys:
    data = _data(text)
    shared, lengths = (_numbers(data, at, count).tolist() for at in range(2))
    ends = list(accumulate(lengths, initial=2 * _NUMBER_BYTES * count))
    _check_length(data, ends[-1])
    keys: list[bytes] = []
    key = b""
    for start, (begin, end) in zip(shared, pairwise(ends), strict=True):
        key = key[:start] + data[begin:end]
        keys.append(key)
    return tuple(keys)


def _shared(one: bytes, other: bytes) -> int:
    """The length of the common prefix."""
    size = min(len(one), len(other))
    difference = int.from_bytes(one[:size]) ^ int.from_bytes(other[:size])
    return size - (difference.bit_length() + 7) // 8


# ------------------------------------------------------------------------------------------- rows


def _pack_rows(rows: Sequence[Row]) -> bytes:
    """The minimum of each column, the columns, and a bit for each row: whether its number of
    entries added is known."""
    known = np.array([row[2] is not None for row in rows], np.bool_)
    least_added = min((row[2] for row in rows if row[2] is not None), default=0)
    filled = [(ms, seq, least_added if n is None else n, of) for ms, seq, n, of in rows]
    columns = np.array(filled, np.uint64).reshape(-1, _COLUMNS).T
    least = [int(column.min(initial=(1 << 64) - 1)) for column in columns]
    parts = [np.array(least, ">u8").tobytes()]
    parts += [_planes(column - np.uint64(low)) for column, low in zip(columns, least, strict=True)]
    parts.append(np.packbits(known).tobytes())
    return b"".join(parts)


def _unpack_rows(data: bytes, count: int) -> list[Row]:
    head = _COLUMNS * _NUMBER_BYTES
    end = head + _COLUMNS * _NUMBER_BYTES * count
    _check_length(data, end + (count + 7) // 8)
    least = np.frombuffer(data, ">u8", _COLUMNS).astype(np.uint64)
    ms, seq, added, incarnation = (
        (_numbers(data[head:end], at, count) + least[at]).tolist() for at in range(_COLUMNS)
    )
    known = np.unpackbits(np.frombuffer(data, np.uint8, offset=end), count=count).tolist()
    counts = [number if is_known else None for number, is_known in zip(added, known, strict=True)]
    return list(zip(ms, seq, counts, incarnation, strict=True))


# ------------------------------------------------------------------------------------------ bytes


def _planes(numbers: Sequence[int] | Column) -> bytes:
    """The numbers' most significant bytes, then the next ones, and so on."""
    column = np.asarray(numbers, np.uint64).astype(">u8")
    return column.view(np.uint8).reshape(-1, _NUMBER_BYTES).T.tobytes()


def _numbers(data: bytes, at: int, count: int) -> Column:
    """The column number `at` of columns of `count` numbers."""
    planes = np.frombuffer(data, np.uint8, _NUMBER_BYTES * count, at * _NUMBER_BYTES * count)
    rows = np.ascontiguousarray(planes.reshape(_NUMBER_BYTES, count).T)
    return rows.view(">u8").reshape(count).astype(np.uint64)


def _check_length(data: bytes, wanted: int) -> None:
    if len(data) != wanted:
        raise ValueError(f"it has {len(data)} bytes and should have {wanted}")


def _text(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, LEVEL)).decode()


def _data(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text, validate=True))
