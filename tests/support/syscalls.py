"""The writes, syncs and sends of a server process, in order, according to strace.

The check of a trace is: was a reply that shows an entry sent before an fdatasync that covers the
journal write of that entry? Entries are recognised by their IDs, which the callers choose to differ
from all other numbers (see MARKED_ID).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .waiting import wait_until

SYNC_DELAY_US = 3000

FIRST_MARKED_ID = 7_000_000
# strace prints CR LF as the four characters \r\n.
MARKED_ID = re.compile(r"(7\d{6})[-.]1(?!\d)")

_CALL = re.compile(r"^(\d+) +(\w+)\((\d+)<(.*?)>(?=[,)]| <unf)(.*)$")
_RESUMED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)$")
_RESULT = re.compile(r"\) += (-?\d+)")


def wrapper(output: Path) -> list[str]:
    """The command prefix that traces a server. It is an error if strace is missing."""
    strace = shutil.which("strace")
    assert strace, "strace is missing: apt-get install strace"
    calls = "fdatasync,fsync,write,writev,pwrite64,pwritev,pwritev2,sendto,sendmsg"
    # With a slow disk many requests arrive during a sync, when a reply could be sent too early.
    slow_disk = f"inject=fdatasync,fsync:delay_enter={SYNC_DELAY_US}"
    # -D: the server remains our child, so that our signals reach the server.
    options = ["-D", "-f", "-yy", "-s", "100000", "-e", f"trace={calls}", "-e", slow_disk]
    return [strace, *options, "-o", str(output)]


def wait_complete(output: Path) -> None:
    """Wait until strace has recorded the end of the process."""
    wait_until(
        lambda: output.read_text(errors="replace").splitlines()[-1],
        lambda line: "+++" in line,
        "the end of the trace",
    )


@dataclass(frozen=True)
class Moment:
    """The begin or the end of a system call."""

    call: str
    target: str
    data: str
    is_begin: bool
    is_end: bool
    succeeded: bool


def moments(output: Path) -> Iterator[Moment]:
    """The begins and ends of all system calls, in order."""
    open_calls: dict[str, tuple[str, str, str]] = {}
    for line in output.read_text(errors="replace").splitlines():
        if match := _CALL.match(line):
            thread, call, _, target, rest = match.groups()
            if rest.endswith("<unfinished ...>"):
                open_calls[thread] = (call, target, rest)
                yield Moment(call, target, rest, True, False, False)
            else:
                yield Moment(call, target, rest, True, True, _succeeded(rest))
        elif match := _RESUMED.match(line):
            thread, call, rest = match.groups()
            if thread in open_calls:
                call, target, data = open_calls.pop(thread)
                yield Moment(call, target, data, False, True, _succeeded(rest))


def _succeeded(rest: str) -> bool:
    result = _RESULT.search(rest[-200:])
    return result is not None and int(result[1]) >= 0


@dataclass
class Verdict:
    """The results of a trace for the marked IDs."""

    journaled: set[str]
    replied: set[str]
    too_early: list[str]


def judge(output: Path, directory: Path) -> Verdict:
    """Follow every marked ID from the journal write through fdatasync to the replies that show
    it."""
    written: set[str] = set()
    covered_by_running: dict[str, set[str]] = {}
    durable: set[str] = set()
    verdict = Verdict(set(), set(), [])
    for moment in moments(output):
        ids = set(MARKED_ID.findall(moment.data))
        if moment.target.startswith("TCP"):
            if moment.is_begin:
                verdict.replied |= ids
                verdict.too_early += sorted(ids - durable)
        elif not moment.target.startswith(str(directory)):
            continue
        elif moment.call in ("fdatasync", "fsync"):
            if moment.is_begin:
                covered_by_running[moment.target] = set(written)
            if moment.is_end and moment.succeeded:
                durable |= covered_by_running.pop(moment.target, set())
        elif moment.is_end and moment.succeeded:
            written |= ids
            verdict.journaled |= ids
    return verdict
