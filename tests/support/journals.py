"""Journals written by hand: whole files, and more frames at the end of one."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from zlib import crc32

from millstream.commands.runtime.effects import split_effects
from millstream.encoding import encode_request
from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.journal_format import (
    FrameFormat,
    encode_header,
    read_head,
    sound_frames,
)

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


def as_resp(payload: bytes) -> bytes:
    """A frame as earlier versions recorded it: all effects are RESP."""
    parts: list[bytes] = []
    selected = 0
    for db, words, _ in split_effects(payload):
        if db != selected:
            parts.append(encode_request([b"SELECT", b"%d" % db]))
            selected = db
        parts.append(encode_request(words))
    return b"".join(parts)


def rewrite_as_version_2(path: Path) -> None:
    """Replace a server's journal by the one that an earlier version would have written: with the
    header of version 2, and all effects as RESP."""
    file = SystemDisk(path.parent).read(path.name)
    form = read_head(file).format
    frames = [
        (seq, unsynced, as_resp(payload))
        for _, seq, unsynced, payload in sound_frames(file, form, form.header_size)
    ]
    file.close()
    common = struct.pack("<8sIIQI", b"MILLJRNL", 2, 0, 0, 0)
    start = common + struct.pack("<I", crc32(common)) + form.directory + form.salt + bytes(4)
    start += struct.pack("<I", crc32(start))
    path.write_bytes(with_frames(start * 2, frames, form))
