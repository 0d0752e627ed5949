"""The slow log: the last commands that took longer than a threshold, for SLOWLOG.

Only the handler's time counts, without waiting, sending and the disk. Long requests are cut, which
bounds the log; passwords are removed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from millstream.server.monitor.secrets import without_secrets

MAX_WORDS = 32
MAX_WORD_BYTES = 128


class SlowRequest(NamedTuple):
    """One slow command. `words` are shortened and without passwords."""

    number: int
    time_s: int
    duration_us: int
    words: list[bytes]
    address: bytes
    name: bytes


class Slowlog:
    """Entries, newest last. `threshold_us` 0 records every command, a negative one none."""

    def __init__(self, max_len: int = 128, threshold_us: int = 10_000) -> None:
        self._max_len = max_len
        self.threshold_us = threshold_us
        self._entries: deque[SlowRequest] = deque()
        self._next_number = 0

    def note(self, now_ms: int, duration_us: int, words: Sequence[bytes], client: Any) -> None:
        """Record that a command of `client` (a Session, or None) took this long."""
        if self.threshold_us < 0 or duration_us < self.threshold_us:
            return
        address = client.address.encode() if client is not None else b""
        name = client.name if client is not None else b""
        shown = cut(without_secrets(words))
        self._entries.append(
            SlowRequest(self._next_number, now_ms // 1000, duration_us, shown, address, name)
        )
        self._next_number += 1
        self._trim()

    def resize(self, max_len: int) -> None:
        """Keep no more than this number of entries."""
        self._max_len = max_len
        self._trim()

    def _trim(self) -> None:
        while len(self._entries) > self._max_len:
            self._entries.popleft()

    def entries(self, count: int) -> list[SlowRequest]:
        """The newest `count` entries, newest first; -1 for all."""
        newest = list(reversed(self._entries))
        return newest if count < 0 else newest[:count]

    def clear(self) -> None:
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)


def cut(words: Sequence[bytes]) -> list[bytes]:
    """At most MAX_WORDS words of at most MAX_WORD_BYTES, with a note of what was left out."""
    kept = words if len(words) <= MAX_WORDS else words[: MAX_WORDS - 1]
    shown = [_cut_word(word) for word in kept]
    if len(words) > MAX_WORDS:
        shown.append(b"... (%d more arguments)" % (len(words) - MAX_WORDS + 1))
    return shown


def _cut_word(word: bytes) -> bytes:
    if len(word) <= MAX_WORD_BYTES:
        return bytes(word)
    return word[:MAX_WORD_BYTES] + b"... (%d more bytes)" % (len(word) - MAX_WORD_BYTES)
