"""Lines of history: which frames two servers have in common.

A frame's number alone does not identify it, because a server that lost the end of its journal uses
the numbers again. Each run of a server as primary therefore begins a line of history with a random
ID, and (line, number) identifies one payload forever. A server knows its last lines and the number
of the first frame of each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from millstream.storage.keyspace.keyspace import HISTORIES_MAX, Line

_LINE = re.compile(rb"([0-9a-f]{40}):([1-9][0-9]{0,18})")


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
    found = [_LINE.fullmatch(part) for part in parts]
    if len(parts) > HISTORIES_MAX or not all(found):
        raise ValueError(f"{word[:80]!r} is not a list of histories")
    lines = tuple((one[1].decode(), int(one[2])) for one in found if one is not None)
    if any(left[1] >= right[1] for left, right in pairwise(lines)):
        raise ValueError("the numbers of a list of histories do not increase")
    return lines
