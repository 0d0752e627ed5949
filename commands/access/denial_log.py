"""ACL LOG: the refused requests, newest first.

Equal refusals of a user within a minute are one entry with a count, so a client that repeats a
request does not displace the other entries.
"""

from __future__ import annotations

from collections import Counter

REPEAT_MS = 60_000
LOOK_BACK = 10  # entries that may be the same refusal
NAME_MAX_BYTES = 1024  # of a key, a channel or a user's name, which a client may choose


class Denial:
    """`reason` is command, key, channel or auth; `context` toplevel, multi or lua; `subject` the
    command's name, the key or the channel."""

    def __init__(
        self,
        number: int,
        reason: str,
        context: str,
        subject: bytes,
        user: bytes,
        client_line: str,
        now_ms: int,
    ) -> None:
        self.number = number
        self.reason = reason
        self.context = context
        self.subject = subject
        self.user = user
        self.client_line = client_line
        self.created_ms = self.last_ms = now_ms
        self.count = 1

    def is_same(self, other: Denial) -> bool:
        return (self.reason, self.context, self.subject, self.user) == (
            other.reason, other.context, other.subject, other.user,
        ) and abs(self.last_ms - other.last_ms) <= REPEAT_MS  # fmt: skip

    def described(self, now_ms: int) -> dict[bytes, object]:
        return {
            b"count": self.count,
            b"reason": self.reason.encode(),
            b"context": self.context.encode(),
            b"object": self.subject,
            b"username": self.user,
            b"age-seconds": (now_ms - self.last_ms) / 1000,
            b"client-info": self.client_line.encode("utf-8", "surrogateescape"),
            b"entry-id": self.number,
            b"timestamp-created": self.created_ms,
            b"timestamp-last-updated": self.last_ms,
        }


def _cut(name: bytes) -> bytes:
    if len(name) <= NAME_MAX_BYTES:
        return name
    return name[:NAME_MAX_BYTES] + b"... (%d more bytes)" % (len(name) - NAME_MAX_BYTES)


class DenialLog:
    """At most `max_len` entries; `counts` counts all refusals by their reason."""

    def __init__(self, max_len: int = 128) -> None:
        self._max_len = max_len
        self.counts: Counter[str] = Counter()
        self._entries: list[Denial] = []  # newest first
        self._next_number = 0

    def note(
        self, reason: str, context: str, subject: bytes, user: bytes, client_line: str, now_ms: int
    ) -> None:
        self.counts[reason] += 1
        names = _cut(subject), _cut(user)
        entry = Denial(self._next_number, reason, context, *names, client_line, now_ms)
        for at, earlier in enumerate(self._entries[:LOOK_BACK]):
            if earlier.is_same(entry):
                earlier.count += 1
                earlier.last_ms = now_ms
                earlier.client_line = client_line
                self._entries.insert(0, self._entries.pop(at))
                return
        self._next_number += 1
        self._entries.insert(0, entry)
        self._trim()

    def resize(self, max_len: int) -> None:
        """Keep no more than this number of entries."""
        self._max_len = max_len
        self._trim()

    def _trim(self) -> None:
        del self._entries[self._max_len :]

    def newest(self, count: int) -> list[Denial]:
        return self._entries[: max(count, 0)]

    def clear(self) -> None:
        self._entries.clear()
