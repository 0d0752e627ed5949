"""The positions of a command's keys, and the flags of COMMAND for their use.

Cluster-aware clients and proxies read these words of Redis: RO, RW, OW (overwrites), RM (removes);
access, update, insert, delete. The positions follow from the syntax line. Most uses follow from the
command's flags; the row has the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

from millstream.commands.table.syntax import (
    Argument,
    SyntaxLineError,
    least_words,
    least_words_of_given,
)
from millstream.storage.blocks.entry_filter import (
    CONDITIONS_MAX,
    COUNTED,
    IN_VALUES_MAX,
    OPERANDS,
)

WRITES, READS, BOTH = "RW update", "RO access", "RW access update"
# A name that is not a key, but belongs to a slot like one: a shard channel.
NOT_KEY = "not_key"
WHERE = b"WHERE"
OPTIONS_START = 4  # an option that writes comes after the words that every request has
Words = Sequence[bytes]


class KeyUse:
    """A use that depends on the words of the request, which `of` takes; `flags` has all uses."""

    def __init__(
        self,
        flags: str,
        of: Callable[[Words], str],
    ) -> None:
        self.flags = flags
        self.of = of


def has_option(words: Words, option: bytes) -> bool:
    """True if a request has the option that writes (`writes_with` of its row). The words of
    conditions are none."""
    try:
        return word_at(words, OPTIONS_START, option) is not None
    except (IndexError, ValueError):
        return option in [word.upper() for word in words[OPTIONS_START:]]


def word_at(words: Words, at: int, wanted: bytes) -> int | None:
    """The place of a word in capitals from `at` on, but not in the conditions of WHERE. ValueError
    or IndexError if these are not valid."""
    while at < len(words):
        word = words[at].upper()
        if word == wanted:
            return at
        at = after_conditions(words, at + 1) if word == WHERE else at + 1
    return None


def after_conditions(words: Words, at: int) -> int:
    """The place after the conditions whose number is the word at `at`. These words are not checked
    yet: ValueError or IndexError if they are no conditions."""
    count, at = _number(words[at], CONDITIONS_MAX), at + 1
    for _ in range(count):
        operands, at = OPERANDS.get(words[at + 1].upper(), 1), at + 2
        if operands == COUNTED:
            operands, at = _number(words[at], IN_VALUES_MAX), at + 1
        at += operands
    return at


def _number(word: bytes, most: int) -> int:
    number = int(word)
    if not 1 <= number <= most:
        raise ValueError(f"{number} is not from 1 to {most}")
    return number


def use_with(option: bytes) -> KeyUse:
    """The use of a command's key that is only read without this option."""
    return KeyUse(BOTH, lambda words: BOTH if has_option(words, option) else READS)


class KeySpec:
    """Keys that are used in one way: from `first` to `last` (relative to first; negative: from the
    end) by `step`; or all words after the word `keyword`, searched from `first` on, or the first
    half of them (`halved`); or the number of keys that the word at `first` gives (`counted`), after
    it. Without the keyword, or with the number 0, there are none, if they are `optional`. `of`
    gives the use in a request where that varies. `filtered`: the keyword is not searched in the
    conditions of WHERE. With `options`, the keyword is one of these options from `first` on, in any
    order, and the word after it is the key; an empty word is none."""

    def __init__(
        self,
        flags: str,
        first: int,
        last: int,
        step: int,
        keyword: str = "",
        *,
        halved: bool = False,
        counted: bool = False,
        optional: bool = False,
        of: Callable[[Words], str] | None = None,
        filtered: bool = False,
        options: Sequence[Argument] = (),
    ) -> None:
        self.flags = flags
        self.first = first
        self.last = last
        self.step = step
        self.keyword = keyword
        self.halved = halved
        self.counted = counted
        self.optional = optional
        self.of = of
        self.filtered = filtered
        self.options = options

    @property
    def is_movable(self) -> bool:
        return bool(self.keyword) or self.counted

    @property
    def is_key(self) -> bool:
        return self.flags != NOT_KEY


def find_key_specs(
    arguments: Sequence[Argument], at: int, use: str | KeyUse, *, writes: bool
) -> tuple[KeySpec, ...]:
    """The key specs of a command whose first argument is the word `at`. `use` has the use of each
    key, with commas between; the flags decide if it is empty."""
    of = use.of if isinstance(use, KeyUse) else None
    use = f"{use.flags} variable_flags" if isinstance(use, KeyUse) else use
    for index, argument in enumerate(arguments):
        if argument.token == "STREAMS":
            filtered = any(before.token == "WHERE" for before in _all_of(arguments))
            return (KeySpec(use or READS, at, -1, 1, "STREAMS", halved=True, filtered=filtered),)
        if argument.name == "numkeys":
            counted = arguments[index + 1]
            step, optional = len(counted.parts) or 1, counted.optional
            return (KeySpec(use or BOTH, at, 0, step, counted=True, optional=optional),)
        if use == NOT_KEY:
            return (KeySpec(NOT_KEY, at, -1 if argument.multiple else 0, 1),)
        if index == 0 and "key" in (argument.kind, *(part.kind for part in argument.parts[:1])):
            use = use or (WRITES if writes else READS)
            if argument.multiple:
                return (KeySpec(use, at, -1, len(argument.parts) or 1, of=of),)
            count = sum(1 for _ in takewhile(_is_plain_key, arguments))
            uses = use.split(", ")
            named = _named_keys(arguments[count:], at + count, uses[-1])
            if len(uses) == 1:
                return (KeySpec(use, at, count - 1, 1, of=of), *named)
            return (*(KeySpec(one, at + n, 0, 1) for n, one in enumerate(uses)), *named)
        if _has_key(argument):
            raise SyntaxLineError(f"no key spec for {argument.name}")
        at += least_words(argument)
    return ()


def _is_plain_key(argument: Argument) -> bool:
    return argument.kind == "key" and not argument.token


def _named_keys(arguments: Sequence[Argument], at: int, use: str) -> tuple[KeySpec, ...]:
    """The key spec of an option with one key (DEADLETTER of TGROUP); or of one at the end whose
    values are all keys (CHILDREN of TSEAL): before its name, only other options may stand, and the
    first such word is the name."""
    named = list(filter(_has_key, arguments))
    for argument in named:
        if _is_option_with_key(argument) and len(named) == 1:
            at += sum(map(least_words, takewhile(lambda one: not one.optional, arguments)))
            options = [one for one in arguments if one.optional]
            spec = KeySpec(use, at, 0, 1, argument.token, optional=True, options=options)
            return (spec,)
        if argument is arguments[-1] and argument.kind == "key" and argument.multiple:
            return (KeySpec(use, at, -1, 1, argument.token, optional=argument.optional),)
        raise SyntaxLineError(f"no key spec for {argument.name}")
    return ()


def _is_option_with_key(argument: Argument) -> bool:
    return argument.kind == "key" and bool(argument.token) and not argument.multiple


def _all_of(arguments: Sequence[Argument]) -> Iterator[Argument]:
    for argument in arguments:
        yield argument
        yield from _all_of(argument.parts)


def _has_key(argument: Argument) -> bool:
    return argument.kind == "key" or any(map(_has_key, argument.parts))


def fixed_places(specs: Sequence[KeySpec]) -> tuple[int, int, int]:
    """First, last and step of the keys that stand at the same places in every request; zeros if
    there are none."""
    fixed = [spec for spec in specs if not spec.is_movable]
    if not fixed:
        return 0, 0, 0
    first, last = fixed[0], fixed[-1]
    return first.first, last.last + last.first * (last.last >= 0), first.step


def key_positions(specs: Sequence[KeySpec], words: Words) -> list[int]:
    """Indexes of the keys in a request (name first), as clients find them with the key specs:
    options and IDs after a keyword are not checked. ValueError or IndexError without keys."""
    return [position for spec in specs for position in _positions(spec, words)]


def _positions(spec: KeySpec, words: Words) -> Sequence[int]:
    if spec.options:
        return list(_values_of_option(spec, words))
    if not spec.is_movable:
        last = spec.last + (spec.first if spec.last >= 0 else len(words))
        return range(spec.first, last + 1, spec.step)
    first, least = spec.first + 1, not spec.optional
    if spec.keyword:
        names = [word.upper() for word in words[:-1]]
        keyword = spec.keyword.encode()
        if spec.optional and keyword not in names[spec.first :]:
            return range(0)
        first = _keyword_at(spec, names, keyword) + 1
        count = (len(words) - first) // (2 if spec.halved else 1)
    else:
        count = int(words[spec.first])
    if not least <= count <= (len(words) - first) // spec.step:
        raise ValueError(f"{count} keys")
    return range(first, first + count * spec.step, spec.step)


def _values_of_option(spec: KeySpec, words: Words) -> Iterator[int]:
    """The places of the values of an option, which may be repeated. ValueError or IndexError if the
    options are not valid."""
    at = spec.first
    while at < len(words):
        if words[at].upper() == spec.keyword.encode() and words[at + 1]:
            yield at + 1
        at = _after_option(spec.options, words, at)


def _after_option(options: Sequence[Argument], words: Words, at: int) -> int:
    """The place after the option whose name is the word at `at`."""
    name = words[at].upper()
    if name == WHERE:
        return at + 2 if words[at + 1] == b"0" else after_conditions(words, at + 1)
    named = [one for one in options if _token_of(one).encode() == name]
    if not named:
        raise ValueError(f"{name!r} is no option")
    [option] = named
    if option.kind == "block":  # the number of values, and the values
        count = int(words[at + 1])
        if count < 0:
            raise ValueError(f"{count} values")
        return at + 2 + count
    if option.kind == "oneof":
        kinds = {_token_of(one).encode(): least_words(one) for one in option.parts}
        return at + 1 + kinds.get(words[at + 1].upper(), 1)
    return at + least_words_of_given(option)


def _token_of(argument: Argument) -> str:
    return argument.token or (argument.parts[0].token if argument.parts else "")


def _keyword_at(spec: KeySpec, names: Words, keyword: bytes) -> int:
    if not spec.filtered:
        return names.index(keyword, spec.first)
    found = word_at(names, spec.first, keyword)
    if found is None:
        raise ValueError(f"no {spec.keyword}")
    return found


def keys_with_flags(
    specs: Sequence[KeySpec], words: list[bytes]
) -> Iterator[tuple[bytes, list[str]]]:
    """Each key of a request and the flags of its use."""
    for spec in specs:
        if not spec.is_key:
            continue
        flags = (spec.of(words) if spec.of else spec.flags).split()
        for position in _positions(spec, words):
            yield words[position], flags
