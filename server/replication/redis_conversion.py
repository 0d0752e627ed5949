"""The conversion of the RDB of a Redis into a base, which another process does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from millstream.errors import DataError


class ConversionError(DataError):
    """The RDB cannot be converted, however often. The text is a sentence."""


class Conversion(NamedTuple):
    """An RDB to convert: its descriptor and size, the descriptor of the base, the ID of the data
    directory, the number of the last frame in the base, and the databases that there are.
    `with_streams`: the result names all streams. `is_over`: the result is not needed any more."""

    rdb: int
    size_bytes: int
    base: int
    directory: bytes
    seq: int
    databases: int
    with_streams: bool
    is_over: Callable[[], bool]


@dataclass
class Converted:
    """The contents of the base. `added` has the number of entries ever added to each stream, by
    database and key as reports show it. `left_out`: the number of keys of other types."""

    keys: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    added: dict[tuple[int, str], int] = field(default_factory=dict)


class Converter(Protocol):
    """Runs on a thread of its own."""

    def convert(self, conversion: Conversion) -> Converted:
        """ConversionError, or DataError when another attempt may succeed."""

    def stop(self) -> None:
        """End the conversion that is running, from any thread. One that `is_over` never begins."""
