"""The data of a backup, from a running server or from a data directory without one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from millstream.errors import DataError, printable
from millstream.server.backup.answer import BackupAnswer
from millstream.server.backup.copying import CopyWriter
from millstream.server.repair.destination import without_data
from millstream.server.replication.records import (
    PIECE_BYTES,
    Decoder,
    LinkError,
    Record,
    RecordKind,
    parse_piece,
)
from millstream.storage.files.disk import Disk, File
from millstream.storage.files.journal_reader import JournalReader
from millstream.storage.files.journal_writer import PAYLOAD_MAX
from millstream.storage.files.manifest import load_manifest
from millstream.storage.files.snapshot_reader import SnapshotEnds

_LINE_MAX = 4096
Progress = Callable[[int, int], None]


class Refused(Exception):
    """The server has answered with an error."""


class Broken(Exception):
    """The data ended, or was damaged, before the copy was complete."""


class Copied(NamedTuple):
    """A finished copy: the last frame in it, its bytes, the answer of the server, and the bytes of
    a torn end that were left out."""

    last_seq: int
    size_bytes: int
    answer: BackupAnswer | None = None
    torn_bytes: int = 0


# A running server


def copy_from_server(received: Iterator[bytes], disk: Disk, tell: Progress) -> Copied:
    """Write the data that a server sends in answer to BACKUP. `tell(done, total)` is called with
    the bytes of the base."""
    answer, rest = _read_answer(received)
    decoder = Decoder(PAYLOAD_MAX)
    decoder.feed(rest)
    writer = CopyWriter(disk, answer.base_seq, answer.base_bytes)
    try:
        _take_records(received, decoder, writer, answer, tell)
        try:
            writer.finish(answer.last_seq)
        except DataError as error:
            raise Broken(f"the server has ended the connection early: {error}") from None
    except (LinkError, DataError) as error:
        raise Broken(f"what the server sends is damaged: {error}") from None
    finally:
        writer.close()
    return Copied(writer.last_seq, writer.size_bytes, answer)


def _read_answer(received: Iterator[bytes]) -> tuple[BackupAnswer, bytes]:
    """The answer and the bytes after it. Lines without text come before it while the server
    prepares the data."""
    text = b""
    for data in received:
        text = (text + data).lstrip(b"\r\n")
        line, end, rest = text.partition(b"\r\n")
        if not end and len(line) < _LINE_MAX:
            continue
        if line.startswith(b"-"):
            raise Refused(printable(line[1:].decode("utf-8", "replace")))
        try:
            return BackupAnswer.parse(line), rest
        except (ValueError, TypeError) as error:
            shown = printable(line[:80].decode("utf-8", "replace"))
            raise Broken(f"the server has answered {shown}: {error}") from None
    raise Broken("the server has ended the connection without an answer")


def _take_records(
    received: Iterator[bytes],
    decoder: Decoder,
    writer: CopyWriter,
    answer: BackupAnswer,
    tell: Progress,
) -> None:
    has_base = answer.base_bytes == 0
    while not (has_base and writer.last_seq >= answer.last_seq):
        record = decoder.next()
        if record is None:
            data = next(received, None)
            if data is None:
                return
            decoder.feed(data)
        elif _take(record, writer):
            has_base = True
        else:
            tell(min(writer.size_bytes, answer.base_bytes), answer.base_bytes)


def _take(record: Record, writer: CopyWriter) -> bool:
    """Write a record; True for the end of the base."""
    if record.kind is RecordKind.FRAME:
        writer.frame(record.number, record.payload)
    elif record.kind is RecordKind.PIECE:
        writer.piece(*parse_piece(record.payload))
    elif record.kind is RecordKind.END:
        writer.end_base()
        return True
    else:
        raise LinkError(f"a record of kind {record.kind}")
    return False


# A data directory


def copy_from_directory(source: Disk, disk: Disk, tell: Progress) -> Copied:
    """Write the data of a directory that no server uses: its base, and its frames up to a torn end.
    DataError when it is damaged."""
    manifest = load_manifest(source)
    if manifest is None:
        raise without_data(source)
    with contextlib.ExitStack() as stack:
        files = [source.read(name) for name in manifest.files]
        for file in files:
            stack.callback(file.close)
        total_bytes = sum(file.size for file in files)
        base = files.pop(0) if manifest.base is not None else None
        base_seq = 0 if base is None else SnapshotEnds(base).read_header().seq
        writer = CopyWriter(disk, base_seq, 0 if base is None else base.size)
        stack.callback(writer.close)
        if base is not None:
            _copy_base(base, writer, lambda done: tell(done, total_bytes))
        frames = JournalReader(files, base_seq + 1)
        for _, _, payload in frames.frames():
            writer.frame(writer.last_seq + 1, payload)
            tell(writer.size_bytes, total_bytes)
        writer.finish(writer.last_seq)
    torn_bytes = 0 if frames.torn is None else frames.torn.torn_bytes
    return Copied(writer.last_seq, writer.size_bytes, torn_bytes=torn_bytes)


def _copy_base(base: File, writer: CopyWriter, tell: Callable[[int], None]) -> None:
    for offset in range(0, base.size, PIECE_BYTES):
        writer.piece(offset, base.read_at(offset, min(PIECE_BYTES, base.size - offset)))
        tell(offset)
    writer.end_base()
