"""RESP2 and RESP3 with exact types.

Client libraries convert `$-1`, `*-1` and `_` to None, and simple strings to bulk strings. These
tests check the exact bytes, so every RESP type has its own Python type here, and a reply prints in
the notation of the transcripts.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias


class Null(enum.Enum):
    """The three null values. They are false, as what a test waits for is true."""

    BULK = "$-1"
    ARRAY = "*-1"
    RESP3 = "_"

    def __bool__(self) -> bool:
        return False


@dataclass(frozen=True)
class Simple:
    """`+OK`"""

    text: str


@dataclass(frozen=True)
class Error:
    """`-ERR ...`, without the leading dash."""

    text: str


@dataclass(frozen=True)
class Double:
    """`,1.5`; stored as the received text."""

    text: str


@dataclass(frozen=True)
class BigNumber:
    """`(123...`"""

    text: str


@dataclass(frozen=True)
class Verbatim:
    """`=15` + CRLF + `txt:Some string`"""

    data: bytes


@dataclass
class Map:
    """`%n`: the pairs in the received order."""

    pairs: list[tuple[Reply, Reply]]


@dataclass
class Set:
    """`~n`"""

    items: list[Reply]


@dataclass
class Push:
    """`>n`: out-of-band in RESP3."""

    items: list[Reply]


Reply: TypeAlias = (
    bytes
    | int
    | bool
    | Null
    | Simple
    | Error
    | Double
    | BigNumber
    | Verbatim
    | Map
    | Set
    | Push
    | list["Reply"]
)
Argument: TypeAlias = bytes | str | int


def encode_command(arguments: Iterable[Argument]) -> bytes:
    """One request as an array of bulk strings."""
    parts = [a if isinstance(a, bytes) else str(a).encode() for a in arguments]
    head = b"*%d\r\n" % len(parts)
    return head + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


_BULK, _VERBATIM, _MAP = b"$=%"
_OF_MANY: dict[int, Callable[[list[Reply]], Reply]] = {
    ord("*"): lambda items: items,
    ord("~"): Set,
    ord(">"): Push,
    _MAP: lambda items: Map(list(zip(items[::2], items[1::2], strict=True))),
}


def _no_more() -> None:
    raise EOFError("the reply is incomplete")


def read_reply(
    data: bytes | bytearray, at: int = 0, more: Callable[[], None] = _no_more
) -> tuple[Reply, int]:
    """Read the reply that begins at `at`; returns it and where it ends. While it is incomplete,
    `more` is called, which appends to `data`; without it, EOFError. ValueError on unknown types."""
    start = at
    while (end := data.find(b"\r\n", start)) < 0:
        start = max(at, len(data) - 1)
        more()
    kind, rest, at = data[at], data[at + 1 : end], end + 2
    if kind in (_BULK, _VERBATIM):  # first, because most replies consist of these
        size = int(rest)
        if size < 0:
            return Null.BULK, at
        end = at + size
        while len(data) < end + 2:
            more()
        if data[end : end + 2] != b"\r\n":
            wrong = bytes(data[end : end + 2])
            raise ValueError(f"bulk string of {size} bytes is not followed by CRLF: {wrong!r}")
        text = bytes(data[at:end])
        return (text if kind == _BULK else Verbatim(text)), end + 2
    if kind in _OF_MANY:
        count = int(rest)
        if count < 0:
            return Null.ARRAY, at
        items: list[Reply] = []
        for _ in range(2 * count if kind == _MAP else count):
            item, at = read_reply(data, at, more)
            items.append(item)
        return _OF_MANY[kind](items), at
    return _read_scalar(chr(kind), rest.decode()), at


def _read_scalar(kind: str, text: str) -> Reply:
    if kind == "+":
        return Simple(text)
    if kind == "-":
        return Error(text)
    if kind == ":":
        return int(text)
    if kind == ",":
        return Double(text)
    if kind == "(":
        return BigNumber(text)
    if kind == "#":
        return text == "t"
    if kind == "_":
        return Null.RESP3
    raise ValueError(f"not a RESP reply: {kind + text!r}")


def _quoted(byte: int) -> str:
    char = chr(byte)
    if char in '"\\$':
        return "\\" + char
    return char if 32 <= byte < 127 else f"\\x{byte:02x}"


_QUOTED = {byte: _quoted(byte) for byte in range(256)}


def quote(data: bytes) -> str:
    """A bulk string in the notation of the transcripts."""
    return '"' + data.decode("latin-1").translate(_QUOTED) + '"'


def show(reply: Reply) -> str:
    """A reply in the notation of the transcripts; long bulk strings are cut."""
    if isinstance(reply, bytes):
        return quote(reply) if len(reply) <= 200 else quote(reply[:60]) + f"...({len(reply)} bytes)"
    if isinstance(reply, list):
        return "[" + ", ".join(map(show, reply)) + "]"
    if isinstance(reply, bool):
        return "#t" if reply else "#f"
    if isinstance(reply, int):
        return str(reply)
    if isinstance(reply, Null):
        return {"$-1": "nil", "*-1": "nil[]", "_": "nil (RESP3)"}[reply.value]
    if isinstance(reply, Simple):
        return "+" + reply.text
    if isinstance(reply, Error):
        return "-" + reply.text
    if isinstance(reply, Double):
        return "," + reply.text
    if isinstance(reply, BigNumber):
        return "(" + reply.text
    if isinstance(reply, Verbatim):
        return "=" + quote(reply.data)
    if isinstance(reply, Map):
        return "{" + ", ".join(f"{show(k)}: {show(v)}" for k, v in reply.pairs) + "}"
    if isinstance(reply, Set):
        return "~[" + ", ".join(map(show, reply.items)) + "]"
    return ">[" + ", ".join(map(show, reply.items)) + "]"


def facts_of(reply: Reply) -> dict[bytes, Reply]:
    """A map as a dict, in either protocol."""
    if isinstance(reply, Map):
        return {name: value for name, value in reply.pairs if isinstance(name, bytes)}
    assert isinstance(reply, list), f"{reply!r} is no map"
    pairs = zip(reply[::2], reply[1::2], strict=True)
    return {name: value for name, value in pairs if isinstance(name, bytes)}
