r"""Transcripts: conversations with a server, written as data and played against a live one.

    == a title that says the promise
    @redis                               tags: see TAGS
    # a comment
    > TAPPEND s f v                      a command of the connection `main`
    <tid:a>                              its reply: an id ms.seq, kept as `a`
    > XRANGE s ${a.x} +                  ${a} is ms.seq, ${a.x} ms-seq, also .ms .seq .ms+1 .seq-2
    [["${a.x}", ["f", "v"]]]
    [b] >> TREAD s "" 1 BLOCK 0          another connection; >> does not wait for the reply
    wait blocked 1                       until INFO says so
    [b] silent                           nothing has come
    [b] < [["${a}", "f", "v"]]           the reply that was owed
    [b] close
    repeat 250 > XADD s ${i}-0 f v       no error may come; ${i} counts from 1
    eventually > XLEN s                  again and again until the reply fits
    0
    mark t
    at least 90 ms since t               a lower bound on real time; there are no upper ones
    elapse 100 ms since t                where time itself is what has to pass
    restart                              the process ends, in the way being played, and starts again
    restart 160 ms later                 the same, and this long passes before the start

Replies: `"bulk"` (escapes \" \\ \$ \n \r \t \xNN), `5`, `+OK`, `-ERR to the end of the line` (a
final ` ...` leaves the rest open; `-"ERR quoted "` inside arrays and for spaces at the end), `nil`
($-1, in RESP3 _), `nil[]` (*-1, in RESP3 _), `[a, b]`, `{k: v}` (a map; in RESP2 a flat array),
`pairs{k: v}` (a map; in RESP2 an array of pairs), `~[a]` (a set; in RESP2 an array), `push[a]` (in
RESP2 an array), `#t`, and the open ones: `<tid>` `<xid>` `<int>` `<int 3..9>` `<int 3..>` `<text>`
`<any>` (but no error), each with a name to keep it: `<int:n>`. `...` in an array stands for any
number of elements, in a map for further pairs. `${n}` outside quotes is a number that was kept.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from .client import RawClient
from .resp import Error, Map, Null, Push, Reply, Set, Simple, quote, show
from .waiting import wait_until

TAGS = {
    "@redis": "also true of a real redis-server",
    "@resp2": "played in RESP2 only",
    "@resp3": "played in RESP3 only",
    "@restart": "has `restart` lines: played once for each way to restart",
}
EVENTUALLY_DEADLINE_S = 10.0


class TranscriptError(Exception):
    """The transcript itself is malformed."""


class Mismatch(AssertionError):
    """The server sent another reply."""


class Playable(Protocol):
    """The methods of a server that a player uses."""

    def client(self, protocol: int = 2) -> RawClient: ...

    def restart(self, way: str = "SIGTERM", down_s: float = 0) -> None: ...


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


# ---------------------------------------------------------------------------------------------
# Reading transcripts


@dataclass(frozen=True)
class Step:
    line: int
    text: str
    verb: str
    client: str = "main"
    words: tuple[str, ...] = ()
    number: int = 0
    name: str = ""
    expected: str | None = None
    pattern: Pattern | None = None


@dataclass
class Section:
    path: Path
    line: int
    title: str
    tags: set[str] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)

    @property
    def label(self) -> str:
        return f"{self.path.stem}: {self.title}"

    @property
    def protocols(self) -> tuple[int, ...]:
        if "@resp2" in self.tags:
            return (2,)
        return (3,) if "@resp3" in self.tags else (2, 3)


_WORD = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|(\S+))')
_SIMPLE_STEPS = [
    ("blocked", re.compile(r"wait blocked (?P<number>\d+)")),
    ("mark", re.compile(r"mark (?P<name>\w+)")),
    ("least", re.compile(r"at least (?P<number>\d+) ms since (?P<name>\w+)")),
    ("elapse", re.compile(r"elapse (?P<number>\d+) ms since (?P<name>\w+)")),
    ("restart", re.compile(r"restart")),
    ("restart_later", re.compile(r"restart (?P<number>\d+) ms later")),
    ("silent", re.compile(r"silent")),
    ("close", re.compile(r"close")),
]
_COMMAND_STEPS = [
    ("call", re.compile(r">(?!>)(?P<words>.*)")),
    ("send", re.compile(r">>(?P<words>.*)")),
    ("eventually", re.compile(r"eventually >(?P<words>.*)")),
    ("repeat", re.compile(r"repeat (?P<number>\d+) >(?P<words>.*)")),
]
_ANSWERED = {"call", "eventually", "read"}


def read_words(source: str) -> tuple[str, ...]:
    """The words of a command line, as templates."""
    words = []
    position = 0
    while source[position:].strip():
        match = _WORD.match(source, position)
        assert match
        words.append(unescape(match[1]) if match[1] is not None else match[2])
        position = match.end()
    return tuple(words)


def _read_step(line: int, text: str) -> Step | None:
    """The step that a line starts, or None when the line belongs to a reply."""
    client, rest = "main", text
    prefix = re.match(r"\[(\w+)\] (?=>|<|silent|close)", text)
    if prefix:
        client, rest = prefix[1], text[prefix.end() :]
    if rest.startswith("<") and prefix:
        return Step(line, text, "read", client, expected=rest[1:].strip())
    for verb, form in _SIMPLE_STEPS:
        if match := form.fullmatch(rest):
            parts = match.groupdict()
            number, name = int(parts.get("number") or 0), parts.get("name") or ""
            return Step(line, text, verb, client, number=number, name=name)
    for verb, form in _COMMAND_STEPS:
        if match := form.fullmatch(rest):
            number = int(match.groupdict().get("number") or 0)
            return Step(line, text, verb, client, read_words(match["words"]), number)
    return None


def read_transcript(path: Path) -> list[Section]:
    """The sections of one file. TranscriptError with file and line when it is malformed."""
    sections: list[Section] = []
    owed: list[str] | None = None
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, raw in enumerate([*lines, "== end"], start=1):
        text = raw.strip()
        if not text or text.startswith("# ") or text == "#":
            continue
        starts = text.startswith("== ")
        step = None if starts else _read_step(number, text)
        try:
            if owed is not None and (starts or step):
                _finish_reply(sections[-1], owed)
                owed = None
            if starts:
                sections.append(Section(path, number, text[3:]))
            elif step:
                sections[-1].steps.append(step)
                if step.verb in _ANSWERED:
                    owed = [step.expected] if step.expected else []
            elif text in TAGS and not sections[-1].steps:
                sections[-1].tags.add(text)
            elif owed is None:
                raise TranscriptError(f"not understood: {text!r}")
            else:
                owed.append(text)
        except (TranscriptError, IndexError) as error:
            raise TranscriptError(f"{path.name}:{number}: {error}") from error
    return sections[:-1]


def _finish_reply(section: Section, lines: list[str]) -> None:
    step = section.steps[-1]
    source = " ".join(lines)
    if not source:
        raise TranscriptError(f"no reply is given for {step.text!r} of line {step.line}")
    section.steps[-1] = Step(
        step.line,
        step.text,
        step.verb,
        step.client,
        step.words,
        step.number,
        step.name,
        source,
        read_pattern(source),
    )


@functools.cache
def read_folder(folder: Path) -> list[Section]:
    """All sections of all transcripts of a folder; titles must differ within a file."""
    sections = [s for path in sorted(folder.glob("*.txt")) for s in read_transcript(path)]
    labels = [section.label for section in sections]
    twice = {label for label in labels if labels.count(label) > 1}
    if twice:
        raise TranscriptError(f"these titles are used twice: {sorted(twice)}")
    return sections


# ---------------------------------------------------------------------------------------------
# Playing


class Player:
    """Plays one section against a server, over as many connections as it names."""

    def __init__(
        self, section: Section, server: Playable, protocol: int = 2, way: str = "SIGTERM"
    ) -> None:
        self._section = section
        self._server = server
        self._protocol = protocol
        self._way = way
        self._clients: dict[str, RawClient] = {}
        self._kept: dict[str, Kept] = {}
        self._marks: dict[str, float] = {}

    def play(self) -> None:
        """Raise Mismatch, with file, line, expected and actual reply, at the first difference."""
        __tracebackhide__ = True
        try:
            for step in self._section.steps:
                self._run(step)
        finally:
            self._close_all()

    def _run(self, step: Step) -> None:
        __tracebackhide__ = True
        try:
            getattr(self, "_do_" + step.verb)(step)
        except Mismatch:
            raise
        except Exception as error:
            raise Mismatch(f"{self._place(step)}{type(error).__name__}: {error}") from error

    def _place(self, step: Step) -> str:
        return f"\n  {self._section.path.name}:{step.line}  {step.text}\n  "

    def _client(self, name: str) -> RawClient:
        if name not in self._clients:
            protocol = 2 if name == "control" else self._protocol
            self._clients[name] = self._server.client(protocol)
        return self._clients[name]

    def _close_all(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _arguments(self, step: Step) -> list[bytes]:
        return [expand(word, self._kept) for word in step.words]

    def _fits(self, step: Step, reply: Reply) -> bool:
        assert step.pattern is not None
        return Matcher(self._protocol, self._kept).fits(step.pattern, reply)

    def _compare(self, step: Step, reply: Reply) -> None:
        __tracebackhide__ = True
        if not self._fits(step, reply):
            kept = {name: show_kept(value) for name, value in self._kept.items()}
            raise Mismatch(
                f"{self._place(step)}expected: {step.expected}\n  came:     {show(reply)}"
                + (f"\n  kept:     {kept}" if kept else "")
            )

    def _do_call(self, step: Step) -> None:
        __tracebackhide__ = True
        self._compare(step, self._client(step.client).call(*self._arguments(step)))

    def _do_send(self, step: Step) -> None:
        self._client(step.client).send(*self._arguments(step))

    def _do_read(self, step: Step) -> None:
        __tracebackhide__ = True
        self._compare(step, self._client(step.client).read())

    def _do_eventually(self, step: Step) -> None:
        __tracebackhide__ = True
        client, arguments = self._client(step.client), self._arguments(step)
        try:
            wait_until(
                lambda: client.call(*arguments),
                lambda reply: self._fits(step, reply),
                "the reply",
                EVENTUALLY_DEADLINE_S,
            )
        except AssertionError:
            self._compare(step, client.call(*arguments))

    def _do_repeat(self, step: Step) -> None:
        commands = []
        for i in range(1, step.number + 1):
            self._kept["i"] = i
            commands.append(self._arguments(step))
        for reply in self._client(step.client).pipeline(commands):
            if isinstance(reply, Error):
                raise Mismatch(f"{self._place(step)}came: {show(reply)}")

    def _do_blocked(self, step: Step) -> None:
        self._client("control").wait_blocked(step.number)

    def _do_silent(self, step: Step) -> None:
        # After the replies to two PINGs, everything that the server sent before has arrived.
        for _ in range(2):
            self._client("control").call("PING")
        client = self._client(step.client)
        if client.has_input():
            raise Mismatch(f"{self._place(step)}came: {show(client.read())}")

    def _do_close(self, step: Step) -> None:
        self._clients.pop(step.client).close()

    def _do_mark(self, step: Step) -> None:
        self._marks[step.name] = time.monotonic()

    def _do_least(self, step: Step) -> None:
        elapsed_ms = (time.monotonic() - self._marks[step.name]) * 1000
        if elapsed_ms < step.number:
            raise Mismatch(f"{self._place(step)}only {elapsed_ms:.0f} ms have passed")

    def _do_elapse(self, step: Step) -> None:
        end = self._marks[step.name] + step.number / 1000
        wait_until(lambda: time.monotonic() >= end, what="the time")

    def _do_restart(self, step: Step) -> None:
        self._close_all()
        self._server.restart(self._way)

    def _do_restart_later(self, step: Step) -> None:
        self._close_all()
        self._server.restart(self._way, step.number / 1000)


def show_kept(value: Kept) -> str:
    """A kept value, for failure messages."""
    if isinstance(value, KeptId):
        return f"{value.ms}.{value.seq}"
    return str(value) if isinstance(value, int) else quote(value)
