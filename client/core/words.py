"""Keys, IDs, fields and BLOCK as words of a request."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from millstream.client.core.steps import Word
from millstream.client.ids import ID

Key: TypeAlias = str | bytes
IdWord: TypeAlias = ID | str | bytes | int
Fields: TypeAlias = Mapping[Any, Any] | Iterable[tuple[Any, Any]]


def text(word: str | bytes) -> str:
    """A name as text. A name that is not UTF-8 keeps its bytes as surrogates."""
    return word if isinstance(word, str) else word.decode("utf-8", "surrogateescape")


def key_word(name: str) -> str | bytes:
    """The key that `text` was made of."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return name.encode("utf-8", "surrogateescape")
    return name


def id_word(entry_id: IdWord) -> str | bytes | int:
    return str(entry_id) if isinstance(entry_id, ID) else entry_id


def field_words(fields: Fields) -> list[Word]:
    """A mapping or pairs, flat; at least one."""
    pairs = fields.items() if isinstance(fields, Mapping) else fields
    if isinstance(pairs, (str, bytes)) or not isinstance(pairs, Iterable):
        raise ValueError(f"{fields!r} are not fields: use a mapping, or pairs of field and value")
    words = [word for pair in pairs for word in _two(pair)]
    if not words:
        raise ValueError("an entry needs at least one field with a value")
    return words


def _two(pair: Any) -> tuple[Word, Word]:
    if isinstance(pair, (str, bytes)) or not isinstance(pair, Sequence) or len(pair) != 2:
        raise ValueError(f"{pair!r} is not a pair of a field and a value")
    return pair[0], pair[1]


def wait_words(block_ms: int | None) -> tuple[list[Word], float]:
    """BLOCK, and how long the server may wait because of it, in seconds."""
    if block_ms is None:
        return [], 0.0
    return ["BLOCK", block_ms], (block_ms / 1000 if block_ms else math.inf)
