"""Keys, IDs, fields and BLOCK as words of a request."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, TypeAlias

from redis.exceptions import DataError

from millstream.client.core import argument_checks
from millstream.client.core.steps import Word
from millstream.client.errors import InvalidFields
from millstream.client.ids import ID

Key: TypeAlias = str | bytes
IdWord: TypeAlias = ID | str | bytes | int
Value: TypeAlias = str | bytes | int | float
Fields: TypeAlias = (
    Mapping[str, Value] | Mapping[bytes, Value] | Iterable[tuple[str | bytes, Value]]
)
Condition: TypeAlias = Sequence[Any]
"""For WHERE: (field, "EQ", value), (field, "PREFIX", text), (field, "IN", values) or (field,
"BETWEEN", min, max)."""
Order: TypeAlias = Literal["NONE", "ALL"] | tuple[Literal["FIELD"], Key]
"""The order of a group."""
LONG_BYTES = 2**20
"""The least value of proto-max-bulk-len."""
NOT_UTF_8 = "cannot be encoded as UTF-8: it has a surrogate that stands for no byte"


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
    """A mapping or pairs, flat; at least one. InvalidFields if they are something else."""
    pairs: Any = fields
    # Most are a dict: asking for other kinds takes longer.
    if type(fields) is dict or isinstance(fields, Mapping):
        pairs = fields.items()
    elif isinstance(pairs, (str, bytes)) or not isinstance(pairs, Iterable):
        raise InvalidFields(
            f"{fields!r} are not fields: use a mapping, or pairs of field and value"
        )
    words = [word for pair in pairs for word in _two(pair)]
    if not words:
        raise InvalidFields("an entry needs at least one field with a value")
    return words


def _two(pair: Any) -> tuple[Word, Word]:
    # Of a mapping, pairs are tuples: asking for any other sequence takes longer.
    is_pair = type(pair) is tuple or (
        isinstance(pair, Sequence) and not isinstance(pair, (str, bytes))
    )
    if not is_pair or len(pair) != 2:
        raise InvalidFields(f"{pair!r} is not a pair of a field and a value")
    field, value = pair
    if not is_word(field):
        if isinstance(field, str):
            raise InvalidFields(f"the name of the field {field!r} {NOT_UTF_8}")
        raise InvalidFields(f"the name of a field must be text or bytes, not {field!r}")
    return field, check_value(field, value)


def check_value(field: Any, value: Any) -> Value:
    """The value; InvalidFields if it is one that cannot be sent."""
    if not is_word(value):
        if isinstance(value, str):
            raise InvalidFields(f"the value of the field {field!r} {NOT_UTF_8}")
        raise InvalidFields(
            f"the value of the field {field!r} must be text, bytes or a number, not "
            f"{type(value).__name__}: {value!r}"
        )
    return value  # type: ignore[no-any-return]


def is_word(value: Any) -> bool:
    if isinstance(value, str):  # most are, and this is asked twice for each field
        return value.isascii() or _has_bytes(value)
    if isinstance(value, bool):
        return False  # 1, "1", "true" or "True": a reader would have to know
    return isinstance(value, (bytes, int, float, memoryview))


def _has_bytes(text: str) -> bool:
    """False for text with a surrogate that stands for no byte."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def word_bytes(word: Any) -> bytes:
    """A word as it is sent; redis-py's DataError for what it does not send either."""
    if isinstance(word, str):
        return word.encode("utf-8", "surrogateescape")
    if isinstance(word, bytes):
        return word
    if isinstance(word, (int, float)) and not isinstance(word, bool):
        return repr(word).encode()
    if isinstance(word, (bytearray, memoryview)):
        return bytes(word)
    raise DataError(
        f"Invalid input of type: {type(word).__name__!r}. Convert to a bytes, string, int or float "
        "first."
    )


def where_words(where: Sequence[Condition]) -> list[Word]:
    """WHERE with these conditions; nothing without any."""
    words: list[Word] = []
    if isinstance(where, (str, bytes)) or not isinstance(where, Sequence):
        raise ValueError(f"where must be a list of conditions, not {where!r}")
    for condition in where:
        if not isinstance(condition, (list, tuple)) or len(condition) < 3:
            raise ValueError(
                f"{condition!r} is not a condition: use (field, operator, value), such as "
                '("item", "EQ", "tea")'
            )
        field, operator, *operands = condition
        if str(operator).upper() == "IN" and len(operands) == 1:
            [values] = operands
            if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
                raise ValueError(f"the values of IN must be a list or a set, not {values!r}")
            operands = [*values]
            operands.insert(0, len(operands))
        words += [field, operator, *operands]
    return ["WHERE", len(where), *words] if words else []


def is_long(words: Sequence[Any]) -> bool:
    """True if a word of a command may be above proto-max-bulk-len."""
    return any(_most_bytes(word) > LONG_BYTES for word in words)


def _most_bytes(word: Any) -> int:
    """Not above four times its length; 0 for a number."""
    if isinstance(word, (str, bytes)):
        return len(word) * 4
    return word.nbytes if isinstance(word, memoryview) else 0


def check_length(words: Sequence[Any], limits: Mapping[Any, Any]) -> None:
    """After a lost reply: InvalidFields if a word is above a server's limit. The server closes the
    connection then, so it would never be accepted. `limits` is the reply of CONFIG GET."""
    limit = next((int(value) for value in limits.values()), None)
    for before, word in pairwise(words):
        if isinstance(word, str):
            word = word.encode("utf-8", "surrogateescape")
        size = word.nbytes if isinstance(word, memoryview) else 0
        if isinstance(word, bytes):
            size = len(word)
        if limit is not None and size > limit:
            shown = before if isinstance(before, (str, bytes)) and len(before) < 100 else "..."
            raise InvalidFields(
                f"the word after {shown!r} has {size:,} bytes, and proto-max-bulk-len of the "
                f"server is {limit:,}: the server has closed the connection"
            )


def wait_words(block_ms: int | None) -> tuple[list[Word], float]:
    """BLOCK, and how long the server may wait because of it, in seconds."""
    if block_ms is None:
        return [], 0.0
    argument_checks.block_ms(block_ms)
    return ["BLOCK", block_ms], (block_ms / 1000 if block_ms else math.inf)
