"""What a server process wrote, synced and sent, in order, as strace saw it.

The question asked of a trace: did any reply that shows an entry leave before an fdatasync that
covers the journal write of that entry? Entries are recognised by their ids, which the callers
choose to be unlike any other number (see MARKED_ID).
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
    """The words before a server's command line that have it traced. Without strace: a failure."""
    strace = shutil.which("strace")
    assert strace, "strace is missing: apt-get install strace"
    calls = "fdatasync,fsync,write,writev,pwrite64,pwritev,pwritev2,sendto,sendmsg"
    # On a slow disk much is asked while a sync is under way, which is when a reply may slip out.
    slow_disk = f"inject=fdatasync,fsync:delay_enter={SYNC_DELAY_US}"
    # -D: the server stays our child, so that it is the server whom our signals reach.
    options = ["-D", "-f", "-yy", "-s", "100000", "-e", f"trace={calls}", "-e", slow_disk]
    return [strace, *options, "-o", str(output)]


def wait_complete(output: Path) -> None:
    """Wait until strace has written down the end of the process."""
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
    """All begins and ends, in the order in which they happened."""
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
    """What a trace showed of the marked ids."""

    journaled: set[str]
    replied: set[str]
    too_early: list[str]


def judge(output: Path, directory: Path) -> Verdict:
    """Follow every marked id from journal write over fdatasync to the replies that show it."""
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
