"""The values of records: decoding those that are read, and copying bad ones to a dead letter
stream.

A record is decoded before it is handed out. Until a bad one is in the dead letter stream it stays
where it is, so an error or an interruption of the copy loses nothing.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Any

from millstream.client.codecs import Codec, InvalidRecord, codec_of, decoded
from millstream.client.core import argument_checks, requests
from millstream.client.core.repeating import Repeater
from millstream.client.core.steps import Clock, Steps
from millstream.client.core.unreadable import HOPS_MAX, hops_of, letter_of
from millstream.client.core.words import Key, text
from millstream.client.records import Record, ValueRecord, with_value


class Values:
    """The values of the records of one reader."""

    def __init__(
        self,
        kind: Any,
        dead_letter: Key | None,
        group: Key | None,
        times: tuple[Clock, Clock],
        retry_for_s: float = 30.0,
    ) -> None:
        """`times` are a clock that never goes back, and the time since 1970. A copy is repeated for
        `retry_for_s` seconds after a lost reply."""
        self._codec: Codec[Any] = codec_of(kind)
        self._dead_letter = (
            None if dead_letter is None else argument_checks.name("dead_letter", dead_letter)
        )
        self._group = "" if group is None else text(group)
        now, self._wall = times
        self._repeater = Repeater(retry_for_s, now)
        self.buried = 0
        """The number of bad records that were copied."""

    def decode_first(self, buffer: MutableSequence[Record[Any]]) -> bool:
        """Decode the first record, in its place. False if it is bad."""
        try:
            self._decode_first(buffer)
        except InvalidRecord:
            return False
        return True

    def _decode_first(self, buffer: MutableSequence[Record[Any]]) -> None:
        record = buffer[0]
        if not isinstance(record, ValueRecord):
            buffer[0] = with_value(record, decoded(self._codec, record))

    def admit(self, buffer: MutableSequence[Record[Any]]) -> Steps[bool]:
        """Decode the first record. False if it is bad, and in the dead letter stream now. Raises
        InvalidRecord without such a stream."""
        try:
            self._decode_first(buffer)
        except InvalidRecord as error:
            if self._dead_letter is None or hops_of(error.record) >= HOPS_MAX:
                raise
            yield from self._bury(error, self._dead_letter)
            self.buried += 1
            return False
        return True

    def _bury(self, error: InvalidRecord, key: Key) -> Steps[None]:
        """Copy a bad record. The server recognizes a repeat of the request."""
        record = error.record
        words = letter_of(record, self._group, error.reason, self._wall())
        place = f"{record.id.ms}-{record.id.seq}"
        producer = f"invalid:{self._group}:{record.shard}"
        yield from self._repeater.call(requests.append_once(key, producer, place, words))
