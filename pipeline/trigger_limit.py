"""A trigger's limits: whether it waits for more entries, and how streams share its maximum.

Each stream gets an equal share, and streams with fewer entries leave the rest of theirs to the
others, so a stream with a large backlog does not delay the rest. If the limit is smaller than the
number of streams, the streams with the oldest unread entries come first. Streams that are read
advance, so no stream starves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from millstream.pipeline.positions import Id
from millstream.pipeline.source_options import OptionError, SourceOptions

COUNT_MAX = (1 << 31) - 1
# The default of Spark's Kafka source.
DELAY_MAX_MS = 15 * 60_000


class TriggerDelay:
    """Decides whether a trigger waits for more entries: `minOffsetsPerTrigger`, and at most
    `maxTriggerDelay`. As in Spark's Kafka source, the first trigger after a start does not wait."""

    def __init__(self, options: SourceOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self.entries_min = options.integer("minOffsetsPerTrigger", 0, 1, COUNT_MAX)
        self._delay_max_s = options.duration_ms("maxTriggerDelay", DELAY_MAX_MS) / 1000
        self._clock = clock
        self._last_s: float | None = None
        if "maxTriggerDelay" in options and not self.entries_min:
            raise OptionError("option 'maxTriggerDelay' needs the option 'minOffsetsPerTrigger'")
        entries_max = options.integer("maxEntriesPerTrigger", COUNT_MAX, 1, COUNT_MAX)
        if self.entries_min > entries_max:
            raise OptionError(
                f"option {options.name_of('minOffsetsPerTrigger')!r} is {self.entries_min}, which"
                f" is more than {options.name_of('maxEntriesPerTrigger')!r}, {entries_max}"
            )

    def waits(self, entries: int) -> bool:
        """True if a trigger with this number of new entries leaves them to a later trigger."""
        now_s = self._clock()
        is_time = self._last_s is None or now_s - self._last_s >= self._delay_max_s
        if entries < self.entries_min and not is_time:
            return True
        self._last_s = now_s
        return False

    def proceed(self) -> None:
        """Record a trigger that does not wait."""
        self._last_s = self._clock()


def share(limit: int, waiting: Mapping[bytes, tuple[int, Id]]) -> dict[bytes, int]:
    """The number of entries to read from each stream, at most `limit` in total. `waiting` has the
    number of unread entries of each stream and the ID that they follow."""
    shares: dict[bytes, int] = {}
    left, streams = limit, len(waiting)
    by_count = sorted(waiting, key=lambda key: waiting[key][0])
    for at, key in enumerate(by_count):
        count = waiting[key][0]
        if count * (streams - at) > left:  # the rest of the streams exceed an equal share
            return shares | _split(left, by_count[at:], waiting)
        shares[key] = count
        left -= count
    return shares


def _split(
    left: int, keys: list[bytes], waiting: Mapping[bytes, tuple[int, Id]]
) -> dict[bytes, int]:
    """Equal shares; the remainder goes, one entry each, to the streams with the largest lag."""
    each, rest = divmod(left, len(keys))
    oldest = sorted(keys, key=lambda key: (waiting[key][1], key))
    return {key: each + (at < rest) for at, key in enumerate(oldest)}
