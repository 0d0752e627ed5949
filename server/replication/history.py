"""Lines of history: which frames two servers have in common.

A frame's number alone does not identify it, because a server that lost the end of its journal uses
the numbers again. Each run of a server as primary therefore begins a line of history with a random
ID, and (line, number) identifies one payload forever. A server knows its last lines and the number
of the first frame of each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from millstream.server.durability.persistence import Persistence
from millstream.server.execution.executor import Executor
from millstream.storage.files.frame_times import encode_line
from millstream.storage.keyspace.keyspace import HISTORIES_MAX, Keyspace, Line

NO_HISTORY = "0" * 40  # shown in place of a line that does not exist
_LINE = rb"([0-9a-f]{40}):([1-9][0-9]{0,18})"


def newest_line(lines: Sequence[Line]) -> str:
    """The ID of the newest line; "" if there is none."""
    return lines[-1][0] if lines else ""


def last_common(
    ours: Sequence[Line], our_last: int, theirs: Sequence[Line], their_last: int
) -> int | None:
    """The last frame that both servers have; None if they have no line in common.

    `our_last` and `their_last` are the numbers of their last frames. The newest common line
    decides: frames before it are the same on both, because a line is only continued, never changed.
    """
    ends = dict(_ends(ours, our_last))
    for line, end in reversed(_ends(theirs, their_last)):
        if line in ends:
            return min(ends[line], end)
    return None


def has_frame(lines: Sequence[Line], last: int, name: str, number: int) -> bool:
    """True if a server with these lines, whose last frame has the number `last`, has this frame of
    the line with this ID. Frames before the first one of a line are the same wherever the line
    is."""
    found = next((end for line, end in _ends(lines, last) if line[0] == name), None)
    return found is not None and number <= found


def _ends(lines: Sequence[Line], last: int) -> list[tuple[Line, int]]:
    """Each line with the number of its last frame."""
    firsts = [first for _, first in lines[1:]]
    return list(zip(lines, [first - 1 for first in firsts] + [last], strict=True)) if lines else []


def encode(lines: Sequence[Line]) -> bytes:
    """Lines as one word: ``id:number,id:number``."""
    return b",".join(b"%s:%d" % (name.encode("ascii"), first) for name, first in lines)


def parse(word: bytes) -> tuple[Line, ...]:
    """The result of `encode`; ValueError for anything else."""
    if not word:
        return ()
    parts = word.split(b",")
    found = [re.fullmatch(_LINE, part) for part in parts]
    if len(parts) > HISTORIES_MAX or not all(found):
        raise ValueError(f"{word[:80]!r} is not a list of histories")
    lines = tuple((one[1].decode(), int(one[2])) for one in found if one is not None)
    if any(left[1] >= right[1] for left, right in pairwise(lines)):
        raise ValueError("the numbers of a list of histories do not increase")
    return lines


class Histories:
    """The lines of history of this server. `own_line` is the one that this server has begun as a
    primary; it may have no frame yet. `term` is that of the next line: 0 outside a shard. `new_id`
    makes 40 random hexadecimal digits."""

    def __init__(
        self,
        keyspace: Keyspace,
        persistence: Persistence,
        executor: Executor,
        new_id: Callable[[], str],
    ) -> None:
        self.keyspace = keyspace
        self.persistence = persistence
        self.executor = executor
        self.new_id = new_id
        self.own_line = NO_HISTORY
        self.term = 0

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines of the frames here."""
        return self.keyspace.histories

    @property
    def newest(self) -> str:
        return newest_line(self.lines)

    def line_at(self, seq: int) -> tuple[str, int]:
        """The line to which this frame belongs, and its term; "" and 0 if it is unknown."""
        for name, first in reversed(self.lines):
            if first <= seq:
                return name, self.keyspace.line_terms.get(name, 0)
        return "", 0

    @property
    def shown(self) -> tuple[str, str]:
        """The newest line and the one before it, with the own one, for INFO."""
        names = [NO_HISTORY, NO_HISTORY, *(name for name, _ in self.lines)]
        if self.persistence.commits.first_effect is not None and names[-1] != self.own_line:
            names.append(self.own_line)
        return names[-1], names[-2]

    def begin(self) -> None:
        """The next frame made here begins a line of history. Without a journal there is none: the
        data changes without frames."""
        if not self.executor.effects.enabled:
            self.forget()
            self.own_line = NO_HISTORY
            self.end()
            return
        self.own_line = self.new_id()
        self.persistence.commits.first_effect = self._first_effect

    def _first_effect(self, seq: int) -> bytes:
        self.keyspace.begin_history(self.own_line, seq, self.term)
        return encode_line(self.own_line.encode(), seq, self.term)

    def end(self) -> None:
        """This server makes no frames any more."""
        self.persistence.commits.first_effect = None

    def forget(self) -> None:
        """The data has changed without a frame: no number identifies it any more."""
        self.keyspace.histories = ()
        self.keyspace.line_terms = {}
        self.keyspace.source = None

    def require_line(self) -> None:
        """A position has to be in a line of history, also before the first change."""
        commits = self.persistence.commits
        if commits.first_effect is not None:
            commits.flush_tick()
            if commits.first_effect is not None:
                commits.commit(b"")

    def journal_switched(self) -> bool:
        """appendonly was switched on or off on a primary. Returns whether the data may change
        without frames from now on."""
        enabled = self.executor.effects.enabled
        if enabled and self.own_line == NO_HISTORY:
            self.begin()
        return not enabled and (
            bool(self.lines) or self.persistence.commits.first_effect is not None
        )
