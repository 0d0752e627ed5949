"""Writing a base that another server has sent, as a base of this data directory.

The files of a directory have its ID, so a base that arrives gets this ID: in its header, which is
its first bytes, and in its summary, which is its last. Everything between them stays as it is,
checksums included, because these begin with the salt of the file and not with the ID.
"""

from __future__ import annotations

import msgpack  # type: ignore[import-untyped]
import zstandard

from millstream.errors import DataError
from millstream.storage.files.disk import File
from millstream.storage.files.snapshot import (
    HEADER_SIZE,
    SnapshotEnds,
    Summary,
    encode_header,
    encode_trailer,
)


class AdoptedBase:
    """A base that is being received. `received_bytes` counts what was passed to `write`."""

    def __init__(self, file: File, directory: bytes) -> None:
        self.file = file
        self.received_bytes = 0
        self._directory = directory
        self._head = b""

    def write(self, data: bytes) -> None:
        """Write the next bytes. DataError when they are not those of a base of this format."""
        self.received_bytes += len(data)
        if len(self._head) < HEADER_SIZE:
            self._head += data
            if len(self._head) < HEADER_SIZE:
                return
            data = self._own_header() + self._head[HEADER_SIZE:]
            self._head = self._head[:HEADER_SIZE]
        self.file.write(data)

    def _own_header(self) -> bytes:
        header = SnapshotEnds(_Bytes(self.file.name, self._head)).read_header()
        if not header.has_identity:
            raise DataError("the base has format 1: write a new one with BGREWRITEAOF")
        return encode_header(header._replace(directory=self._directory))

    def finish(self) -> Summary:
        """Give the summary this directory's ID, and sync the file. DataError when the base is not
        whole."""
        ends = SnapshotEnds(self.file)
        place, fields, footer_offset = ends.read_summary_fields()
        fields["directory"] = self._directory
        summary = msgpack.packb(fields)
        packed = zstandard.ZstdCompressor(level=1).compress(summary)
        self.file.truncate(place.offset)
        self.file.write(packed + encode_trailer(footer_offset, place.offset, packed, len(summary)))
        self.file.sync()
        return SnapshotEnds(self.file).read_summary()


class _Bytes:
    """Bytes as the source of a snapshot."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.size = len(data)
        self._data = data

    def read_at(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]
