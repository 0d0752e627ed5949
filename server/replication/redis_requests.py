"""Reads the stream of commands of a Redis: RESP arrays of bulk strings, without I/O.

Every byte of the stream counts for its offset, also those between requests.
"""

from __future__ import annotations

from millstream.server.replication.records import LinkError

WORDS_MAX = 1 << 20
BULK_MAX = 1 << 30
_NUMBER_MAX = 20


class RequestReader:
    """Requests from bytes that arrive in pieces. `taken_bytes` is the number of bytes of the
    requests that were returned, and `waiting_bytes` that of those after them."""

    def __init__(self) -> None:
        self.taken_bytes = 0
        self._data = b""
        self._at = 0
        self._more: list[bytes] = []  # bytes that are not joined to `data` yet
        self._more_bytes = 0
        self._needed_bytes = 0  # of `more`, before the next request can be complete

    @property
    def waiting_bytes(self) -> int:
        return len(self._data) - self._at + self._more_bytes

    def feed(self, data: bytes) -> None:
        self._more.append(data)
        self._more_bytes += len(data)

    def next(self) -> list[bytes] | None:
        """The next request; None if it has not arrived completely. LinkError for bytes that are no
        request."""
        if self._at >= len(self._data) or self._needed_bytes:
            if not self._more or self._more_bytes < self._needed_bytes:
                return None
            self._join()
        while True:
            words = self._parse()
            if words is not None:
                return words
            if not self._more or self._more_bytes < self._needed_bytes:
                return None
            self._join()

    def _join(self) -> None:
        rest = self._data[self._at :]
        self._data = b"".join((rest, *self._more)) if rest or len(self._more) > 1 else self._more[0]
        self._more.clear()
        self._at = self._more_bytes = self._needed_bytes = 0

    def _parse(self) -> list[bytes] | None:
        """The next request in `data`; None, with `needed_bytes`, if it is not complete."""
        data, at = self._data, self._at
        size = len(data)
        while at < size and data[at] in b"\r\n":  # a sign of life
            at += 1
        self.taken_bytes += at - self._at
        self._at = at
        if at >= size:
            self._needed_bytes = 1
            return None
        if data[at] != 42:
            raise LinkError(f"{data[at : at + 40]!r} in place of a request")
        end = data.find(b"\r\n", at, at + _NUMBER_MAX)
        if end < 0:
            self._need_line(at)
            return None
        count = _number(data[at + 1 : end])
        if not 0 < count <= WORDS_MAX:
            raise LinkError(f"a request of {count} words")
        at = end + 2
        words = []
        for _ in range(count):
            end = data.find(b"\r\n", at, at + _NUMBER_MAX)
            if end < 0:
                self._need_line(at)
                return None
            if data[at] != 36:
                raise LinkError(f"{data[at : at + 40]!r} in place of a word")
            length = _number(data[at + 1 : end])
            if length > BULK_MAX:
                raise LinkError(f"a word of {length} bytes")
            at = end + 2 + length + 2
            if at > size:
                self._needed_bytes = at - size
                return None
            words.append(data[end + 2 : at - 2])
        self.taken_bytes += at - self._at
        self._at = at
        return words

    def _need_line(self, at: int) -> None:
        """A line that begins here has no end yet."""
        if len(self._data) - at >= _NUMBER_MAX:
            raise LinkError(f"{self._data[at : at + 40]!r} in place of a number")
        self._needed_bytes = 1


def _number(text: bytes) -> int:
    if not text.isdigit():
        raise LinkError(f"{text[:40]!r} in place of a number")
    return int(text)
