"""The last frames in memory, as records for replicas (repl-backlog-size)."""

from __future__ import annotations


class Ring:
    """Consecutive records, the oldest of which are dropped when they exceed `limit_bytes`. The last
    one is always kept, whatever its size."""

    def __init__(self, limit_bytes: int, next_seq: int) -> None:
        self.limit_bytes = limit_bytes
        self.first_seq = self.next_seq = next_seq
        self.size_bytes = 0
        self._records: dict[int, bytes] = {}

    def append(self, record: bytes) -> None:
        """Add the record of frame `next_seq`."""
        self._records[self.next_seq] = record
        self.next_seq += 1
        self.size_bytes += len(record)
        while self.size_bytes > self.limit_bytes and self.first_seq < self.next_seq - 1:
            self.size_bytes -= len(self._records.pop(self.first_seq))
            self.first_seq += 1

    def holds(self, seq: int) -> bool:
        return self.first_seq <= seq < self.next_seq

    def take(self, seq: int, last_seq: int, most_bytes: int) -> list[bytes]:
        """The records of the frames from `seq` to `last_seq`, about `most_bytes`; at least one if
        there is any."""
        taken: list[bytes] = []
        size_bytes = 0
        for number in range(seq, min(last_seq + 1, self.next_seq)):
            record = self._records[number]
            if taken and size_bytes + len(record) > most_bytes:
                break
            taken.append(record)
            size_bytes += len(record)
        return taken
