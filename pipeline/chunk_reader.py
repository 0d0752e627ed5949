"""Reads one partition of a snapshot: the chunks that the plan gives to one task.

The file's UUID identifies the planned snapshot. If another snapshot has replaced it, reading fails;
a read never mixes two snapshots.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import msgpack  # type: ignore[import-untyped]
import pyarrow as pa

from millstream.errors import DataError
from millstream.pipeline.batch_maker import BadValue, BatchMaker, shown
from millstream.pipeline.selection import EntryId
from millstream.pipeline.snapshot_plan import Chunk, Pieces, ScanPartition
from millstream.storage.blocks.columns import PieceError
from millstream.storage.files.snapshot_reader import ChunkReader, ReplacedError

_NAMED_MAX = 3


class PartitionReader:
    """Reads one partition, once."""

    def __init__(self, partition: ScanPartition) -> None:
        self._partition = partition
        self._opened: list[int] = []
        self._packed_bytes = 0
        self._metas: dict[int, memoryview] = {}

    def batches(self, maker: BatchMaker) -> Iterator[pa.RecordBatch]:
        """Add the wanted entries to `maker`; yield the batches that became full. DataError names
        the file and the stream that cannot be read."""
        snapshot = self._partition.snapshot
        try:
            with closing(snapshot.folder.open(snapshot.file)) as file:
                self._reader = ChunkReader(file, snapshot.uuid)
                for chunk in self._partition.chunks:
                    yield from self._batches(chunk, maker)
        except (FileNotFoundError, ReplacedError):
            raise DataError(
                f"{snapshot.folder}: the snapshot {snapshot.file} was replaced by another"
                " after this query was planned; load the directory again (in Spark by load(): a"
                " DataFrame keeps its plan) and run the query again"
            ) from None

    def _batches(self, chunk: Chunk, maker: BatchMaker) -> Iterator[pa.RecordBatch]:
        data = self._chunk(chunk)
        try:
            for start, end, first in self._runs(chunk, data):
                yield from maker.add_pieces(
                    data, chunk.pieces, (start, end), first, self._partition.last
                )
        except BadValue:
            raise  # the error names the entry, which may belong to an earlier piece
        except PieceError as error:
            raise self._refused(chunk, error) from None

    def _runs(self, chunk: Chunk, data: memoryview) -> Iterator[tuple[int, int, EntryId]]:
        """Runs of neighbouring pieces that are read from the same first ID: start, end, ID."""
        pieces = chunk.pieces
        start = 0
        for at in sorted({*pieces.firsts, *pieces.metas}):
            if start < at:
                yield start, at, self._partition.first
            first = pieces.firsts.get(at, self._partition.first)
            if at in pieces.metas:
                first = max(first, self._first_kept(chunk, at, data))
            yield at, at + 1, first
            start = at + 1
        if start < len(pieces):
            yield start, len(pieces), self._partition.first

    def metrics(self, rows: int) -> dict[str, object]:
        """The metrics of what was read: the numbers of the chunks, their bytes in the file, and the
        rows made."""
        snapshot = self._partition.snapshot
        return {
            "partition": self._partition.number,
            "file": f"{snapshot.folder}/{snapshot.file}",
            "chunks": self._opened,
            "bytes": self._packed_bytes,
            "rows": rows,
        }

    def _chunk(self, chunk: Chunk) -> memoryview:
        self._opened.append(chunk.number)
        self._packed_bytes += chunk.place.length
        try:
            return self._reader.chunk(chunk.number, chunk.place)
        except DataError as error:
            keys = list(dict.fromkeys(chunk.pieces.keys))
            names = ", ".join(map(shown, keys[:_NAMED_MAX]))
            more = f" and {len(keys) - _NAMED_MAX} more" if len(keys) > _NAMED_MAX else ""
            raise DataError(f"{error} (it holds entries of stream {names}{more})") from None

    def _first_kept(self, chunk: Chunk, at: int, data: memoryview) -> EntryId:
        """A stream's first kept ID, from metadata that was too long for the index."""
        meta = chunk.pieces.metas[at]
        if meta.chunk != chunk.number:
            if meta.chunk not in self._metas:
                of_stream = Pieces([chunk.pieces.keys[at]])
                place = self._partition.meta_places[meta.chunk]
                self._metas = {meta.chunk: self._chunk(Chunk(meta.chunk, place, of_stream))}
            data = self._metas[meta.chunk]
        ms, seq = msgpack.unpackb(data[meta.offset : meta.offset + meta.length])["first_kept"]
        return ms, seq

    def _refused(self, chunk: Chunk, error: PieceError) -> DataError:
        file = f"{self._partition.snapshot.folder}/{self._partition.snapshot.file}"
        return DataError(
            f"{file}: chunk {chunk.number} at offset {chunk.place.offset}, stream"
            f" {shown(chunk.pieces.keys[error.piece])} at unpacked byte"
            f" {chunk.pieces.offsets[error.piece]}: {error}"
        )
