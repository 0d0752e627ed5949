"""Parses a command's syntax line into arguments in the form of COMMAND DOCS.

The notation: ``[x]`` may be left out, ``<a | b>`` is one of several, a word in capitals is literal,
another word is a value, and ``x [x ...]`` or ``x [...]`` may be repeated. A ``|`` with spaces
around it separates alternatives of its group; ``MAXLEN|MINID``, without spaces, is one of these
words.

A value may be followed by its type, ``start:integer``, and a group may begin with a label,
``[condition: NX | XX]``: the name that COMMAND DOCS gives to it.
``{ids: IDS numids id}`` is a group for COMMAND DOCS only, with its first word as its token. Pages
and help show the line without labels, types and braces (`shown_syntax`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_WORD = r"[^\s\[\]<>{}|]+"
_TOKENS = re.compile(rf"[\[\]<>{{}}|]|\.\.\.|{_WORD}(?:\|{_WORD})*")
_CLOSING = {"[": "]", "<": ">", "{": "}"}
_LABEL = r"(?<=[\[<{])(?:[a-z-]+: )+|(?<=\| )(?:[a-z-]+: )+"
_KINDS = {
    **dict.fromkeys(("key", "newkey", "source", "destination"), "key"),
    **dict.fromkeys(
        (
            "client-id", "count", "cursor", "db", "decrement", "destination-db", "duration",
            "entries-added", "entries-read", "frequency", "increment", "index", "index1",
            "index2", "integer",
            "maxage", "maxcount", "maxsize", "milliseconds", "ms", "numids", "numkeys",
            "numlocal", "numreplicas", "offset", "protover", "seconds", "timeout", "ttl",
            "version",
        ),
        "integer",
    ),
    "float": "double",
    "pattern": "pattern",
    **dict.fromkeys(("unix-time-seconds", "unix-time-milliseconds"), "unix-time"),
}  # fmt: skip
_TYPE = re.compile(r":(integer|double|key|string)\b")
_SIGNS = {"=": "equal", "~": "approximately", "*": "auto-id", "$": "new-id"}


class Argument:
    """One argument: `kind` as in Redis (key, string, integer, pattern, pure-token, oneof, block);
    `token` the fixed word before the value. It changes only while its line is parsed: every start
    parses all lines."""

    def __init__(
        self, name: str, kind: str, token: str = "", parts: tuple[Argument, ...] = ()
    ) -> None:
        self.name = name
        self.kind = kind
        self.token = token
        self.optional = self.multiple = False
        self.parts = parts


class SyntaxLineError(ValueError):
    """A syntax line with unbalanced brackets."""


def parse_syntax(syntax: str) -> list[Argument]:
    """The arguments of a syntax line, in order."""
    tokens = _TOKENS.findall(syntax)
    alternatives, at = _parse_group(tokens, 0, "")
    if at != len(tokens):
        raise SyntaxLineError(syntax)
    return alternatives[0] if len(alternatives) == 1 else [_one_of(alternatives)]


def least_words(argument: Argument) -> int:
    """The least number of words of a request for this argument."""
    return 0 if argument.optional else least_words_of_given(argument)


def least_words_of_given(argument: Argument) -> int:
    """The same if it is not left out."""
    fixed = 1 if argument.token and argument.kind != "pure-token" else 0
    if argument.kind == "oneof":
        return fixed + min(map(least_words, argument.parts))
    if argument.kind == "block":
        return fixed + sum(map(least_words, argument.parts))
    return fixed + 1


def arity_of(arguments: Sequence[Argument], name_words: int) -> int:
    """Redis' arity of a command whose name has `name_words` words: the exact number of words, or
    negative for at least that many."""
    least = name_words + sum(map(least_words, arguments))
    return -least if any(map(_varies, arguments)) else least


def _varies(argument: Argument) -> bool:
    sizes = {least_words(part) for part in argument.parts}
    unequal = argument.kind == "oneof" and len(sizes) > 1
    return argument.optional or argument.multiple or unequal or any(map(_varies, argument.parts))


def shown_syntax(syntax: str) -> str:
    """The line without labels, types and braces."""
    return re.sub(_LABEL, "", _TYPE.sub("", syntax)).replace("{", "").replace("}", "")


def _is_token(word: str) -> bool:
    return word == word.upper()


def _parse_group(tokens: list[str], at: int, closing: str) -> tuple[list[list[Argument]], int]:
    """Alternatives up to (and past) the closing bracket; each is a sequence of arguments."""
    alternatives: list[list[Argument]] = [[]]
    while at < len(tokens):
        token = tokens[at]
        at += 1
        if token == closing:
            return alternatives, at
        if token == "|":
            alternatives.append([])
        elif token == "...":
            if alternatives[-1]:
                alternatives[-1][-1].multiple = True
        elif token in _CLOSING:
            label = tokens[at][:-1] if at < len(tokens) and tokens[at].endswith(":") else ""
            inner, at = _parse_group(tokens, at + bool(label), _CLOSING[token])
            if token == "{":
                alternatives[-1].append(_labelled_block(label, inner))
            else:
                _add_group(alternatives[-1], inner, label, optional=token == "[")
        elif token in "]>}":
            raise SyntaxLineError(" ".join(tokens))
        else:
            alternatives[-1].append(_word(token))
    if closing:
        raise SyntaxLineError(" ".join(tokens))
    return [_join_tokens(sequence) for sequence in alternatives], at


def _word(word: str) -> Argument:
    if "|" in word:
        return _one_of([[_word(part)] for part in word.split("|")])
    if _is_token(word):
        return Argument(_SIGNS.get(word, word.lower()), "pure-token", token=word)
    if ":" in word and (typed := _TYPE.search(word)):
        return Argument(word[: typed.start()], typed[1])
    return Argument(word, _KINDS.get(word, "string"))


def _join_tokens(sequence: list[Argument]) -> list[Argument]:
    """A fixed word before a value becomes that value's token."""
    joined: list[Argument] = []
    for argument in sequence:
        before = joined[-1] if joined else None
        fixed = before is not None and before.kind == "pure-token" and not before.optional
        if fixed and before and not argument.token and not argument.optional:
            argument.token = before.token
            joined[-1] = argument
        else:
            joined.append(argument)
    return joined


def _one_of(alternatives: list[list[Argument]]) -> Argument:
    parts = tuple([_block(sequence) for sequence in alternatives])
    return Argument("_".join([part.name for part in parts]), "oneof", parts=parts)


def _block(sequence: list[Argument]) -> Argument:
    if len(sequence) == 1:
        return sequence[0]
    return Argument("_".join([part.name for part in sequence]), "block", parts=tuple(sequence))


def _labelled_block(label: str, inner: list[list[Argument]]) -> Argument:
    """A group in braces; a leading fixed word is the token of the whole group."""
    (sequence,) = inner
    first, *rest = sequence
    if first.kind != "pure-token":
        return Argument(label, "block", parts=tuple(_join_tokens(sequence)))
    return Argument(label, "block", token=first.token, parts=tuple(_join_tokens(rest)))


def _add_group(
    target: list[Argument], inner: list[list[Argument]], label: str, *, optional: bool
) -> None:
    """Append a bracketed group; ``x [x ...]`` and ``x [...]`` mark the x before it as repeated
    instead."""
    if not any(inner):
        if not (optional and target):
            raise SyntaxLineError("an empty group")
        target[-1].multiple = True
        return
    joined = [_join_tokens(sequence) for sequence in inner]
    if len(joined) == 1:
        group = joined[0]
        names = [argument.name for argument in group]
        size = len(group)
        before = target[-size:]
        repeats = optional and size > 0 and group[-1].multiple
        if repeats and [argument.name for argument in before] == names:
            if size == 1:
                target[-1].multiple = True
            else:
                block = _block(before)
                block.name, block.multiple = "data", True
                target[-size:] = [block]
            return
        added = _block(group)
    else:
        added = _one_of(joined)
    if label:
        added.name = label
    added.optional = added.optional or optional
    target.append(added)
