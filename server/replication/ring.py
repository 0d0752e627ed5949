"""The last frames in memory, for replicas (repl-backlog-size)."""

from __future__ import annotations

from millstream.server.replication.records import HEAD_BYTES, encode_frame


class Ring:
    """Consecutive frames, the oldest of which are dropped when their records exceed `limit_bytes`.
    The last one is always kept, whatever its size. A frame is encoded when it is sent for the first
    time: on a replica without replicas of its own that is never."""

    def __init__(self, limit_bytes: int, next_seq: int) -> None:
        self.limit_bytes = limit_bytes
        self.first_seq = self.next_seq = next_seq
        self.size_bytes = 0
        self._payloads: dict[int, bytes] = {}  # of the frames that are not encoded
        self._records: dict[int, bytes] = {}

    def append(self, payload: bytes) -> None:
        """Add frame `next_seq`."""
        self._payloads[self.next_seq] = payload
        self.next_seq += 1
        self.size_bytes += HEAD_BYTES + len(payload)
        while self.size_bytes > self.limit_bytes and self.first_seq < self.next_seq - 1:
            self._drop_first()

    def _drop_first(self) -> None:
        record = self._records.pop(self.first_seq, None)
        if record is not None:
            self.size_bytes -= len(record)
        else:
            self.size_bytes -= HEAD_BYTES + len(self._payloads.pop(self.first_seq))
        self.first_seq += 1

    def holds(self, seq: int) -> bool:
        return self.first_seq <= seq < self.next_seq

    def take(self, seq: int, last_seq: int, most_bytes: int) -> list[bytes]:
        """The records of the frames from `seq` to `last_seq`, about `most_bytes`; at least one if
        there is any."""
        taken: list[bytes] = []
        size_bytes = 0
        for number in range(seq, min(last_seq + 1, self.next_seq)):
            record = self._records.get(number)
            if record is None:
                record = encode_frame(number, self._payloads.pop(number))
                self._records[number] = record
            if taken and size_bytes + len(record) > most_bytes:
                break
            taken.append(record)
            size_bytes += len(record)
        return taken
