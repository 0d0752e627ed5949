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
    """The three null values."""

    BULK = "$-1"
    ARRAY = "*-1"
    RESP3 = "_"


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


def read_reply(read_line: Callable[[], bytes], read_exactly: Callable[[int], bytes]) -> Reply:
    """Read one reply. `read_line` gives a line without its CRLF. ValueError on unknown types."""
    line = read_line()
    kind, rest = line[:1], line[1:]
    if kind == b"$" or kind == b"=":  # first, because most replies consist of these
        size = int(rest)
        if size < 0:
            return Null.BULK
        data = read_exactly(size + 2)
        if data[-2:] != b"\r\n":
            raise ValueError(f"bulk string of {size} bytes is not followed by CRLF: {data[-2:]!r}")
        return data[:-2] if kind == b"$" else Verbatim(data[:-2])
    if kind == b"*" or kind == b"~" or kind == b">":
        if int(rest) < 0:
            return Null.ARRAY
        items = [read_reply(read_line, read_exactly) for _ in range(int(rest))]
        if kind == b"*":
            return items
        return Set(items) if kind == b"~" else Push(items)
    simple = _read_scalar(kind, rest)
    if simple is not None:
        return simple
    if kind == b"%":
        return Map(
            [
                (read_reply(read_line, read_exactly), read_reply(read_line, read_exactly))
                for _ in range(int(rest))
            ]
        )
    raise ValueError(f"not a RESP reply: {line!r}")


def _read_scalar(kind: bytes, rest: bytes) -> Reply | None:
    if kind == b"+":
        return Simple(rest.decode())
    if kind == b"-":
        return Error(rest.decode())
    if kind == b":":
        return int(rest)
    if kind == b",":
        return Double(rest.decode())
    if kind == b"(":
        return BigNumber(rest.decode())
    if kind == b"#":
        return rest == b"t"
    if kind == b"_":
        return Null.RESP3
    return None


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
