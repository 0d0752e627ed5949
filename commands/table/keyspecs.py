"""The positions of a command's keys, and the flags of COMMAND for their use.

Cluster-aware clients and proxies read these words of Redis: RO, RW, OW (overwrites), RM (removes);
access, update, insert, delete. The positions follow from the syntax line. Most uses follow from the
command's flags; the row has the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from millstream.commands.table.syntax import Argument, SyntaxLineError, least_words

WRITES, READS, COUNTED = "RW update", "RO access", "RW access update"
Words = Sequence[bytes]


class KeyUse(NamedTuple):
    """A use that depends on the words of the request, which `of` takes; `flags` has all uses."""

    flags: str
    of: Callable[[Words], str]


class KeySpec(NamedTuple):
    """Keys that are used in one way: from `first` to `last` (relative to first; negative: from the
    end) by `step`; or after the word `keyword`, searched from `first` on, the first half of the
    words; or the number of keys that the word at `first` gives (`counted`), after it, which may be
    0 if the keys are `optional`. `of` gives the use in a request where that varies."""

    flags: str
    first: int
    last: int
    step: int
    keyword: str = ""
    counted: bool = False
    optional: bool = False
    of: Callable[[Words], str] | None = None


def find_key_specs(
    arguments: Sequence[Argument], at: int, use: str | KeyUse, *, writes: bool
) -> tuple[KeySpec, ...]:
    """The key specs of a command whose first argument is the word `at`. `use` has the use of each
    key, with commas between; the flags decide if it is empty."""
    of = use.of if isinstance(use, KeyUse) else None
    use = f"{use.flags} variable_flags" if isinstance(use, KeyUse) else use
    for index, argument in enumerate(arguments):
        if argument.token == "STREAMS":
            return (KeySpec(use or READS, at, -1, 1, "STREAMS"),)
        if argument.name == "numkeys":
            counted = arguments[index + 1]
            spec = KeySpec(use or COUNTED, at, 0, len(counted.parts) or 1)
            return (spec._replace(counted=True, optional=counted.optional),)
        if index == 0 and "key" in (argument.kind, *(part.kind for part in argument.parts[:1])):
            use = use or (WRITES if writes else READS)
            if argument.multiple:
                return (KeySpec(use, at, -1, len(argument.parts) or 1, of=of),)
            keys = takewhile(lambda one: one.kind == "key", arguments)
            uses = use.split(", ")
            if len(uses) == 1:
                return (KeySpec(use, at, sum(1 for _ in keys) - 1, 1, of=of),)
            return tuple(KeySpec(one, at + n, 0, 1) for n, one in enumerate(uses))
        if _has_key(argument):
            raise SyntaxLineError(f"no key spec for {argument.name}")
        at += least_words(argument)
    return ()


def _has_key(argument: Argument) -> bool:
    return argument.kind == "key" or any(map(_has_key, argument.parts))


def fixed_places(specs: Sequence[KeySpec]) -> tuple[int, int, int]:
    """First, last and step of keys that stand at the same places in every request; else zeros."""
    if not specs or specs[0].keyword or specs[0].counted:
        return 0, 0, 0
    first, last = specs[0], specs[-1]
    return first.first, last.last + last.first * (last.last >= 0), first.step


def key_positions(specs: Sequence[KeySpec], words: Words) -> list[int]:
    """Indexes of the keys in a request (name first), as clients find them with the key specs:
    options and IDs after a keyword are not checked. ValueError or IndexError without keys."""
    if not specs:
        return []
    spec = specs[0]
    if spec.keyword:
        names = [word.upper() for word in words[:-1]]
        first = names.index(spec.keyword.encode(), spec.first) + 1
        count, least = (len(words) - first) // 2, 1
    elif spec.counted:
        first, count, least = spec.first + 1, int(words[spec.first]), not spec.optional
    else:
        first, last, step = fixed_places(specs)
        return list(range(first, (last if last >= 0 else len(words) + last) + 1, step))
    if not least <= count <= (len(words) - first) // spec.step:
        raise ValueError(f"{count} keys")
    return list(range(first, first + count * spec.step, spec.step))


def keys_with_flags(
    specs: Sequence[KeySpec], words: list[bytes]
) -> Iterator[tuple[bytes, list[str]]]:
    """Each key of a request and the flags of its use."""
    for number, position in enumerate(key_positions(specs, words)):
        spec = specs[min(number, len(specs) - 1)]
        yield words[position], (spec.of(words) if spec.of else spec.flags).split()
