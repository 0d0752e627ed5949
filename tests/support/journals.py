"""Journals written by hand: whole files, and more frames at the end of one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.journal_format import FrameFormat, encode_header, read_head

DIRECTORY = bytes(16)  # the ID of the data directory
SALT = b"8 bytes."
FORMAT = FrameFormat(SALT)


def header(directory: bytes = DIRECTORY, salt: bytes = SALT) -> bytes:
    return encode_header(directory, salt)


def with_frames(
    start: bytes, frames: Iterable[tuple[int, int, bytes]], form: FrameFormat = FORMAT
) -> bytes:
    """The beginning of a file, and (sequence number, unsynced, payload) as frames after it."""
    data = start
    for seq, unsynced, payload in frames:
        data += form.encode(len(data), seq, unsynced, payload)
    return data


def journal_bytes(
    payloads: list[bytes],
    first_seq: int = 1,
    *,
    synced_each: bool = True,
    directory: bytes = DIRECTORY,
    salt: bytes = SALT,
) -> bytes:
    """A whole file; every frame proves the one before it, or none proves any."""
    frames = [
        (first_seq + at, 0 if synced_each else at, payload) for at, payload in enumerate(payloads)
    ]
    return with_frames(header(directory, salt), frames, FrameFormat(salt, directory))


def append_frames(path: Path, frames: Iterable[tuple[int, bytes]]) -> None:
    """Write frames at the end of a server's journal, as the server would."""
    file = SystemDisk(path.parent).append(path.name)
    form = read_head(file).format
    data: list[bytes] = []
    at = file.size
    for seq, payload in frames:
        data.append(form.encode(at, seq, 0, payload))
        at += len(data[-1])
    file.write(b"".join(data))
    file.close()
