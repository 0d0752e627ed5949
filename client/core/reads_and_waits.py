"""The commands that only read, and the longest time that the words of a command make a server wait.

The answers decide if a lost request is repeated, and how long its reply is awaited. The words of a
new method's request are made in `requests`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

READS: Final = frozenset(
    [
        "BITCOUNT",
        "BITPOS",
        "DBSIZE",
        "DUMP",
        "ECHO",
        "EXISTS",
        "EXPIRETIME",
        "GET",
        "GETBIT",
        "GETRANGE",
        "INFO",
        "KEYS",
        "LASTSAVE",
        "LCS",
        "MGET",
        "OBJECT",
        "PEXPIRETIME",
        "PING",
        "PTTL",
        "RANDOMKEY",
        "SCAN",
        "STRLEN",
        "SUBSTR",
        "TBLOCKS",
        "TIME",
        "TINFO",
        "TSCHEDULED",
        "TMREAD",
        "TPEEK",
        "TPOSITION",
        "TRANGE",
        "TSEEK",
        "TTL",
        "TYPE",
        "XINFO",
        "XLEN",
        "XPENDING",
        "XRANGE",
        "XREAD",
        "XREVRANGE",
    ]
)
"""Commands that change nothing. Repeating one after a broken connection is safe."""


def sent_words(words: Sequence[Any]) -> Sequence[Any]:
    """The words as redis-py sends them: it divides the first one at blanks, so that a command may
    be one text."""
    first = words[0]
    if isinstance(first, str):
        divided: Sequence[Any] = first.encode("utf-8", "surrogateescape").split()
        divided = [word.decode("utf-8", "surrogateescape") for word in divided]
    elif isinstance(first, bytes):
        divided = first.split()
    else:
        return words
    return words if len(divided) < 2 else (*divided, *words[1:])


def command_name(words: Sequence[Any]) -> str:
    """The command in upper case, of words as they are sent."""
    name = words[0]
    if isinstance(name, bytes):
        name = name.decode("ascii", "replace")
    return str(name).upper()


def is_read(words: Sequence[Any]) -> bool:
    words = sent_words(words)
    name = command_name(words)
    if name == "TREAD":
        return not any(upper(word) == b"GROUP" for word in words)
    return name in READS


def upper(word: Any) -> bytes | None:
    """A word of a command, for comparison with an option; None for what is not text."""
    if isinstance(word, str):
        word = word.encode("utf-8", "surrogateescape")
    return word.upper() if isinstance(word, bytes) else None


def block_s(words: Sequence[Any]) -> float:
    """For how long a server may wait before it replies, as the words of the command say."""
    words = sent_words(words)
    name = command_name(words)
    if name == "TPOSITION":
        return position_wait_s(words)
    if name in WAITS_AT:
        at = WAITS_AT[name]
        return milliseconds_s(words[at]) if len(words) > at else 0.0
    option = OPTIONS.get(name)
    if option is None:
        return 0.0
    for word, value in pairwise(words[1:]):
        if upper(word) == option:
            return milliseconds_s(value)
        if upper(word) == b"STREAMS":
            break
    return 0.0


def position_wait_s(words: Sequence[Any]) -> float:
    """For TPOSITION key [WRITER name] [WAIT id ms]."""
    at = 4 if len(words) > 2 and upper(words[2]) == b"WRITER" else 2
    if len(words) > at + 2 and upper(words[at]) == b"WAIT":
        return milliseconds_s(words[at + 2])
    return 0.0


def milliseconds_s(word: Any) -> float:
    """In seconds; 0 ms stands for ever."""
    try:
        milliseconds = int(word)
    except (TypeError, ValueError):
        return 0.0
    return milliseconds / 1000 if milliseconds else math.inf


OPTIONS = dict.fromkeys(("TREAD", "TMREAD", "TPEEK", "XREAD", "XREADGROUP"), b"BLOCK")
WAITS_AT = {"WAIT": 2, "WAITAOF": 3}
"""The place of the milliseconds in the words of these commands."""
