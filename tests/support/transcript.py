r"""Transcripts: conversations with a server, written as data and played against a live one.

    == a title that says the promise
    @redis                               tags: see TAGS
    # a comment
    > TAPPEND s f v                      a command of the connection `main`
    <tid:a>                              its reply: an id ms.seq, kept as `a`
    > XRANGE s ${a.x} +                  ${a} is ms.seq, ${a.x} ms-seq, also .ms .seq .ms+1 .seq-2
    [["${a.x}", ["f", "v"]]]
    [b] >> TREAD s "" 1 BLOCK 0          another connection; >> does not wait for the reply
    wait blocked 1                       until INFO shows it
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
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from .client import RawClient
from .reply_patterns import (
    Kept,
    Matcher,
    Pattern,
    TranscriptError,
    expand,
    read_pattern,
    show_kept,
    unescape,
)
from .resp import Error, Reply, show
from .server import Server
from .waiting import wait_until

TAGS = {
    "@redis": "also true of a real redis-server",
    "@resp2": "played in RESP2 only",
    "@resp3": "played in RESP3 only",
    "@restart": "has `restart` lines: played once for each way to restart",
}
EVENTUALLY_DEADLINE_S = 10.0


class Mismatch(AssertionError):
    """The server sent another reply."""


class Playable(Protocol):
    """The methods of a server that a player uses."""

    def client(self, protocol: int = 2) -> RawClient: ...

    def restart(self, way: str = "SIGTERM", down_s: float = 0) -> None: ...


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


def of_each_file(sections: Iterable[Section]) -> dict[str, list[Section]]:
    """The sections by the names of their files, which are the tests' names."""
    files: dict[str, list[Section]] = {}
    for section in sections:
        files.setdefault(section.path.stem, []).append(section)
    return files


# ---------------------------------------------------------------------------------------------
# Playing


def play_all(sections: Iterable[Section], server: Server) -> None:
    """Play sections, each in all its protocols, against a server that forgets everything before."""
    __tracebackhide__ = True
    for section in sections:
        for protocol in section.protocols:
            server.reset()
            Player(section, server, protocol).play()


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
        file = f"{self._section.path.name}:{step.line}"
        return f"\n  {file} in RESP{self._protocol}  {step.text}\n  "

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
