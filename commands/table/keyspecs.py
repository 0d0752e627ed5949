"""What COMMAND says of how a command uses its keys.

Cluster-aware clients and proxies read these words of Redis: RO, RW, OW (overwrites), RM (removes);
access, update, insert, delete. Most follow from the row's flags; `key_use` in the row has the
others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from millstream.commands.table.registry import Command


class KeySpec(NamedTuple):
    """Keys that are used in one way: from `first` to `last` (relative to first; negative: from the
    end) by `step`; or after the word `keyword`, the first half of the words; or the number of keys
    that the word at `first` gives (`counted`), after it."""

    flags: str
    first: int
    last: int
    step: int
    keyword: str = ""
    counted: bool = False


WRITES, READS, COUNTED = "RW update", "RO access", "RW access update"


def _set_flags(words: list[bytes]) -> str:
    options = {word.upper() for word in words[3:]}
    if b"GET" in options:
        return "RW access update"
    return "RW update" if options & COMPARING_SET_WORDS else "OW update"


def _delex_flags(words: list[bytes]) -> str:
    return "RW delete" if len(words) > 2 else "RM delete"


COMPARING_SET_WORDS = frozenset({b"IFEQ", b"IFNE", b"IFDEQ", b"IFDNE"})
# Commands that use their key in one way or another by their options.
VARIABLE_FLAGS = {"set": _set_flags, "delex": _delex_flags}


def key_specs(row: Command) -> list[KeySpec]:
    """How a command uses its keys; nothing for one without any."""
    if row.keyword is not None:
        word, start = row.keyword
        return [KeySpec(row.key_use or READS, start, -1, 1, word)]
    if row.key_count is not None:
        position, step = row.key_count
        return [KeySpec(row.key_use or COUNTED, position, 0, step, "", True)]
    first, last, step = row.keys
    if not first:
        return []
    use, _, second = row.key_use.partition(", ")
    if second:
        return [KeySpec(use, first, 0, 1), KeySpec(second, first + 1, 0, 1)]
    use = use or (WRITES if "write" in row.flags else READS)
    return [KeySpec(use, first, last - first if last >= 0 else last, step)]


def keyword_positions(spec: KeySpec, words: list[bytes]) -> list[int]:
    """Where keys stand after a keyword, as clients find them with the key spec: options and ids are
    not looked at. ValueError without the word or without keys."""
    names = [word.upper() for word in words[:-1]]
    at = names.index(spec.keyword.encode(), spec.first) + 1
    count = (len(words) - at) // 2
    if not count:
        raise ValueError(f"{spec.keyword} without keys")
    return list(range(at, at + count))


def keys_with_flags(row: Command, words: list[bytes]) -> Iterator[tuple[bytes, list[str]]]:
    """Each key of a request and the words that say how it is used there."""
    specs = key_specs(row)
    if row.keyword is not None:
        positions = keyword_positions(specs[0], words)
    else:
        positions = row.key_positions(words)
    for number, position in enumerate(positions):
        spec = specs[min(number, len(specs) - 1)]
        flags = spec.flags.split()
        if "variable_flags" in flags:
            flags = VARIABLE_FLAGS[row.name](words).split()
        yield words[position], flags
