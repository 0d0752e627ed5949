"""Dividing a trigger's limit among streams.

Every stream gets the same, and what a short one does not need goes to the others; so a stream with
a large backlog does not keep the rest waiting. Where the limit does not reach for all, those that
are furthest behind in time come first: what is served moves on, so nobody starves.
"""

from __future__ import annotations

from collections.abc import Mapping

from millstream.pipeline.positions import Id


def share(limit: int, waiting: Mapping[bytes, tuple[int, Id]]) -> dict[bytes, int]:
    """How many entries of each stream are read: at most `limit` in all. `waiting` has for each
    stream the number of its entries that wait and the id behind which they stand."""
    shares: dict[bytes, int] = {}
    left, streams = limit, len(waiting)
    by_count = sorted(waiting, key=lambda key: waiting[key][0])
    for at, key in enumerate(by_count):
        count = waiting[key][0]
        if count * (streams - at) > left:  # from here on all want more than they can get
            return shares | _split(left, by_count[at:], waiting)
        shares[key] = count
        left -= count
    return shares


def _split(
    left: int, keys: list[bytes], waiting: Mapping[bytes, tuple[int, Id]]
) -> dict[bytes, int]:
    """The same for each, the rest one by one to those furthest behind."""
    each, rest = divmod(left, len(keys))
    oldest = sorted(keys, key=lambda key: (waiting[key][1], key))
    return {key: each + (at < rest) for at, key in enumerate(oldest)}
