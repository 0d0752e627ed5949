"""Writing a base that another server has sent, as a base of this data directory.

The files of a directory have its ID, so a base that arrives gets this ID: in its header, which is
its first bytes, and in its summary, which is its last. Everything between them stays as it is,
checksums included, because these begin with the salt of the file and not with the ID.
"""

from __future__ import annotations

import msgpack  # type: ignore[import-untyped]

from millstream.errors import DataError
from millstream.storage.files.disk import File
from millstream.storage.files.snapshot_format import (
    HEADER_SIZE,
    TRAILER_SIZE,
    Summary,
    encode_header,
    encode_trailer,
    zstd,
)
from millstream.storage.files.snapshot_reader import SnapshotEnds


class AdoptedBase:
    """A base that is being received.

    The sender's trailer is never written: without it the summary, which has the sender's ID, cannot
    be found. A start would take a whole file with that ID for one of another directory.
    """

    def __init__(self, file: File, directory: bytes) -> None:
        self.file = file
        self._directory = directory
        self._head = b""
        self._tail = b""

    def write(self, data: bytes) -> None:
        """Write the next bytes. DataError when they are not those of a base of this format."""
        if len(self._head) < HEADER_SIZE:
            self._head += data
            if len(self._head) < HEADER_SIZE:
                return
            data = self._own_header() + self._head[HEADER_SIZE:]
            self._head = self._head[:HEADER_SIZE]
        data = self._tail + data
        self._tail = data[-TRAILER_SIZE:]
        self.file.write(data[:-TRAILER_SIZE])

    def _own_header(self) -> bytes:
        header = SnapshotEnds(_Bytes(self.file.name, self._head)).read_header()
        if not header.has_identity:
            raise DataError("the base has format 1: write a new one with BGREWRITEAOF")
        return encode_header(header._replace(directory=self._directory))

    def finish(self) -> Summary:
        """Give the summary this directory's ID, and sync the file. DataError when the base is not
        whole."""
        ends = SnapshotEnds(_WithTail(self.file, self._tail))
        place, fields, footer_offset = ends.read_summary_fields()
        fields["directory"] = self._directory
        summary = msgpack.packb(fields)
        packed = zstd().ZstdCompressor(level=1).compress(summary)
        self.file.truncate(place.offset)
        self.file.write(packed + encode_trailer(footer_offset, place.offset, packed, len(summary)))
        self.file.sync()
        return SnapshotEnds(self.file).read_summary()


class _WithTail:
    """A file and the bytes that follow its end."""

    def __init__(self, file: File, tail: bytes) -> None:
        self.name = file.name
        self.size = file.size + len(tail)
        self._file = file
        self._tail = tail

    def read_at(self, offset: int, length: int) -> bytes:
        end = self._file.size
        found = self._file.read_at(offset, min(length, max(0, end - offset)))
        start = max(0, offset - end)
        return found + self._tail[start : start + length - len(found)]


class _Bytes:
    """Bytes as the source of a snapshot."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.size = len(data)
        self._data = data

    def read_at(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]
