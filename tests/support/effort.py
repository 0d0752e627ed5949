"""Numbers of examples and seeds, and the ways to change a byte.

`make test EXAMPLES=10` runs ten times as many examples and seeds, and changes each byte in more
ways. Without it, a test that changes each byte of a file takes some of the ways by turns.
"""

from __future__ import annotations

import os

TIMES = int(os.environ.get("MILLSTREAM_EXAMPLES") or 1)


def examples(number: int) -> int:
    """The number of examples or seeds of a test that needs this many at least."""
    return number * TIMES


def ways(at: int, byte: int, *masks: int) -> set[int]:
    """The values that replace the byte at this offset: zero, and the byte with one of the masks,
    another one at the next offset; with all masks if many examples are wanted."""
    chosen = masks if TIMES > 1 else (masks[at % len(masks)],)
    return {0, *(byte ^ mask for mask in chosen)} - {byte}
