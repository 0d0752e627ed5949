"""Patterns of replies in transcripts, and the values that they keep by name.

transcript.py describes their form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .resp import Error, Map, Null, Push, Reply, Set, Simple, quote


class TranscriptError(Exception):
    """The transcript itself is malformed."""


# ---------------------------------------------------------------------------------------------
# Values kept by name


@dataclass(frozen=True)
class KeptId:
    ms: int
    seq: int


Kept = KeptId | int | bytes
_REFERENCE = re.compile(r"\$\{(\w+)(?:\.(x|ms|seq))?(?:([+-]\d+))?\}")


def expand(template: str, kept: dict[str, Kept]) -> bytes:
    """Replace ${...} references; the rest is latin-1 text, one character per byte."""

    def value(match: re.Match[str]) -> str:
        name, part, shift = match[1], match[2], int(match[3] or 0)
        if name not in kept:
            raise TranscriptError(f"nothing is kept under the name {name!r}")
        found = kept[name]
        if isinstance(found, KeptId):
            if part == "ms":
                return str(found.ms + shift)
            if part == "seq":
                return str(found.seq + shift)
            return f"{found.ms}{'-' if part == 'x' else '.'}{found.seq + shift}"
        if isinstance(found, int):
            return str(found + shift)
        return found.decode("latin-1")

    return _REFERENCE.sub(value, template).replace("\\$", "$").encode("latin-1")


def show_kept(value: Kept) -> str:
    """A kept value, for failure messages."""
    if isinstance(value, KeptId):
        return f"{value.ms}.{value.seq}"
    return str(value) if isinstance(value, int) else quote(value)


# ---------------------------------------------------------------------------------------------
# Patterns of replies


@dataclass(frozen=True)
class Text:
    template: str


@dataclass(frozen=True)
class Exactly:
    reply: Reply


@dataclass(frozen=True)
class ErrorText:
    template: str


@dataclass(frozen=True)
class Nothing:
    in_resp2: Null


@dataclass(frozen=True)
class Open:
    kind: str
    name: str | None
    low: int | None
    high: int | None


@dataclass(frozen=True)
class KeptNumber:
    template: str


@dataclass(frozen=True)
class Items:
    kind: str
    before: tuple[Pattern, ...]
    after: tuple[Pattern, ...] | None


@dataclass(frozen=True)
class Pairs:
    kind: str
    pairs: tuple[tuple[Pattern, Pattern], ...]
    further: bool


Pattern = Text | Exactly | ErrorText | Nothing | Open | KeptNumber | Items | Pairs

_ID = {"tid": re.compile(rb"(\d+)\.(\d+)"), "xid": re.compile(rb"(\d+)-(\d+)")}


@dataclass
class Matcher:
    """Compares a reply with a pattern and keeps what the pattern names."""

    protocol: int
    kept: dict[str, Kept]

    def fits(self, pattern: Pattern, reply: Reply) -> bool:
        if isinstance(pattern, Text):
            return isinstance(reply, bytes) and reply == expand(pattern.template, self.kept)
        if isinstance(pattern, Exactly):
            return type(pattern.reply) is type(reply) and pattern.reply == reply
        if isinstance(pattern, Nothing):
            return reply is (pattern.in_resp2 if self.protocol == 2 else Null.RESP3)
        if isinstance(pattern, ErrorText):
            return isinstance(reply, Error) and self._error_fits(pattern.template, reply.text)
        if isinstance(pattern, Open):
            return self._open_fits(pattern, reply)
        if isinstance(pattern, KeptNumber):
            return type(reply) is int and reply == int(expand(pattern.template, self.kept))
        if isinstance(pattern, Items):
            return self._items_fit(pattern, reply)
        return self._pairs_fit(pattern, reply)

    def _error_fits(self, template: str, text: str) -> bool:
        wanted = expand(template, self.kept).decode("latin-1")
        if wanted.endswith(" ..."):
            return text.startswith(wanted[:-4])
        return text == wanted

    def _open_fits(self, pattern: Open, reply: Reply) -> bool:
        keep: Kept
        if pattern.kind == "any":
            return not isinstance(reply, Error)
        if pattern.kind == "int":
            if type(reply) is not int:
                return False
            if pattern.low is not None and reply < pattern.low:
                return False
            if pattern.high is not None and reply > pattern.high:
                return False
            keep = reply
        elif not isinstance(reply, bytes):
            return False
        elif pattern.kind == "text":
            keep = reply
        else:
            match = _ID[pattern.kind].fullmatch(reply)
            if not match:
                return False
            keep = KeptId(int(match[1]), int(match[2]))
        if pattern.name:
            self.kept[pattern.name] = keep
        return True

    def _items_fit(self, pattern: Items, reply: Reply) -> bool:
        if self.protocol == 3 and pattern.kind in ("set", "push"):
            wanted = Set if pattern.kind == "set" else Push
            if not isinstance(reply, wanted):
                return False
            items = reply.items
        elif isinstance(reply, list):
            items = reply
        else:
            return False
        after = pattern.after
        if after is None:
            return len(items) == len(pattern.before) and self._all_fit(pattern.before, items)
        if len(items) < len(pattern.before) + len(after):
            return False
        tail = items[len(items) - len(after) :]
        return self._all_fit(pattern.before, items) and self._all_fit(after, tail)

    def _all_fit(self, patterns: Sequence[Pattern], items: Sequence[Reply]) -> bool:
        return all(self.fits(pattern, item) for pattern, item in zip(patterns, items, strict=False))

    def _pairs_fit(self, pattern: Pairs, reply: Reply) -> bool:
        pairs = self._as_pairs(pattern.kind, reply)
        if pairs is None:
            return False
        if not pattern.further:
            return len(pairs) == len(pattern.pairs) and all(
                self.fits(wanted[0], pair[0]) and self.fits(wanted[1], pair[1])
                for wanted, pair in zip(pattern.pairs, pairs, strict=True)
            )
        return all(
            any(self.fits(key, pair[0]) and self.fits(value, pair[1]) for pair in pairs)
            for key, value in pattern.pairs
        )

    def _as_pairs(self, kind: str, reply: Reply) -> list[tuple[Reply, Reply]] | None:
        if self.protocol == 3:
            return reply.pairs if isinstance(reply, Map) else None
        if not isinstance(reply, list):
            return None
        if kind == "pairs":
            if not all(isinstance(pair, list) and len(pair) == 2 for pair in reply):
                return None
            return [(pair[0], pair[1]) for pair in reply if isinstance(pair, list)]
        if len(reply) % 2:
            return None
        return list(zip(reply[::2], reply[1::2], strict=True))


# ---------------------------------------------------------------------------------------------
# Reading patterns

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<open><(?P<kind>tid|xid|int|text|any)(?::(?P<name>\w+))?
        (?:\s(?P<low>-?\d+)?\.\.(?P<high>\d+)?)?>)
    | (?P<nilarray>nil\[\])
    | (?P<nil>nil\b)
    | (?P<kept>\$\{\w+\})
    | (?P<dots>\.\.\.)
    | (?P<int>-?\d+)
    | (?P<simple>\+\w+)
    | (?P<error>-(?="))
    | (?P<bool>\#[tf])
    | (?P<opening>\[|\{|~\[|push\[|pairs\{)
    | (?P<closing>\]|\})
    | (?P<comma>,)
    | (?P<colon>:)
    )""",
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "\\$"}


def unescape(body: str) -> str:
    """The inside of a quoted string as a template: one character per byte."""

    def one(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        if match[2] not in _ESCAPES:
            raise TranscriptError(f"unknown escape {match[0]!r}")
        return _ESCAPES[match[2]]

    return re.sub(r"\\(?:x([0-9a-fA-F]{2})|(.))", one, body.encode().decode("latin-1"))


class PatternReader:
    """A recursive-descent reader of one reply pattern."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._tokens = list(self._tokenise(source))
        self._next = 0

    @staticmethod
    def _tokenise(source: str) -> Iterator[re.Match[str]]:
        position = 0
        while source[position:].strip():
            match = _TOKEN.match(source, position)
            if not match:
                raise TranscriptError(f"cannot read {source[position:]!r} in the reply {source!r}")
            yield match
            position = match.end()

    def read(self) -> Pattern:
        pattern = self._one()
        if self._next != len(self._tokens):
            raise TranscriptError(f"something follows the reply in {self._source!r}")
        return pattern

    def _take(self) -> re.Match[str]:
        if self._next == len(self._tokens):
            raise TranscriptError(f"the reply {self._source!r} is not finished")
        self._next += 1
        return self._tokens[self._next - 1]

    def _peek(self, group: str) -> bool:
        return self._next < len(self._tokens) and self._tokens[self._next][group] is not None

    def _one(self) -> Pattern:
        token = self._take()
        if token["string"] is not None:
            return Text(unescape(token["string"][1:-1]))
        if token["open"]:
            low, high = token["low"], token["high"]
            return Open(
                token["kind"],
                token["name"],
                int(low) if low else None,
                int(high) if high else None,
            )
        if token["kept"]:
            return KeptNumber(token["kept"])
        if token["nil"]:
            return Nothing(Null.BULK)
        if token["nilarray"]:
            return Nothing(Null.ARRAY)
        if token["int"]:
            return Exactly(int(token["int"]))
        if token["simple"]:
            return Exactly(Simple(token["simple"][1:]))
        if token["bool"]:
            return Exactly(token["bool"] == "#t")
        if token["error"]:
            return ErrorText(unescape(self._take()["string"][1:-1]))
        opening = token["opening"]
        if opening in ("{", "pairs{"):
            return self._pairs("pairs" if opening == "pairs{" else "map")
        if opening:
            return self._items({"[": "array", "~[": "set", "push[": "push"}[opening])
        raise TranscriptError(f"unexpected {token[0]!r} in the reply {self._source!r}")

    def _items(self, kind: str) -> Items:
        before: list[Pattern] = []
        after: list[Pattern] | None = None
        while not self._peek("closing"):
            if self._peek("dots"):
                self._take()
                after = []
            else:
                (before if after is None else after).append(self._one())
            if self._peek("comma"):
                self._take()
        self._take()
        return Items(kind, tuple(before), None if after is None else tuple(after))

    def _pairs(self, kind: str) -> Pairs:
        pairs: list[tuple[Pattern, Pattern]] = []
        further = False
        while not self._peek("closing"):
            if self._peek("dots"):
                self._take()
                further = True
            else:
                key = self._one()
                if not self._take()["colon"]:
                    raise TranscriptError(f"a colon is missing in {self._source!r}")
                pairs.append((key, self._one()))
            if self._peek("comma"):
                self._take()
        self._take()
        return Pairs(kind, tuple(pairs), further)


def read_pattern(source: str) -> Pattern:
    """A reply pattern from its text."""
    if source.startswith("-") and not re.match(r'-(\d+$|")', source):
        return ErrorText(source[1:])
    if source.startswith("+"):
        return Exactly(Simple(source[1:]))
    return PatternReader(source).read()
