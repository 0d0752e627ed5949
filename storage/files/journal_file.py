"""Journal files that are open for writing: creation, continuation and reserved space."""

import contextlib
import errno

from millstream.errors import DataError
from millstream.storage.files.disk import Disk, File
from millstream.storage.files.journal_format import (
    SALT_SIZE,
    FrameFormat,
    encode_header,
    read_head,
)

# Writes are refused when less than this is reserved. A quarter of it is for automatic changes: keys
# that expire, entries that are trimmed and leases that end in one tick, a few thousand short
# effects.
RESERVE_LEAST = 1 << 20

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class JournalFile:
    """A journal that is open for writing, and the format of its frames. The event loop gets both,
    so it never reads a header."""

    def __init__(
        self,
        file: File,
        format: FrameFormat,
    ) -> None:
        self.file = file
        self.format = format


def create_journal(disk: Disk, name: str, directory: bytes) -> JournalFile:
    """A new journal without frames, for the data directory with this ID. Its header is synced, so
    if a manifest names a shorter file, that file has lost data."""
    salt = disk.random(SALT_SIZE)
    file = disk.create(name)
    try:
        file.write(encode_header(directory, salt))
        file.sync()
    except OSError:
        file.close()
        raise
    return JournalFile(file, FrameFormat(salt, directory))


def continue_journal(disk: Disk, name: str) -> JournalFile:
    """An existing journal, for more frames, after a sync: the data that was read may not be on the
    disk yet. DamageError or FormatError when its header is not valid."""
    file = disk.append(name)
    try:
        file.sync()
        return JournalFile(file, read_head(file).format)
    except (OSError, DataError):
        file.close()
        raise


def reserve_ahead(file: File, wanted_bytes: int) -> int:
    """Reserve up to `wanted_bytes` after the end of `file`; return the number of bytes reserved.

    If the disk lacks space, the size is halved down to RESERVE_LEAST; OSError when even that fails.
    """
    return reserve_after(file, file.size, wanted_bytes, min(wanted_bytes, RESERVE_LEAST))


def reserve_after(file: File, end: int, wanted_bytes: int, least_bytes: int) -> int:
    """Reserve up to `wanted_bytes` after offset `end`, at least `least_bytes`."""
    step_bytes = wanted_bytes
    while True:
        try:
            file.reserve(end + step_bytes)
        except OSError as error:
            if error.errno not in _NO_SPACE or step_bytes <= least_bytes:
                raise
            step_bytes = max(step_bytes // 2, least_bytes)
        else:
            return step_bytes


def give_back(file: File) -> None:
    """Release the space reserved after the end of a journal that gets no more frames."""
    with contextlib.suppress(OSError):  # the space is freed when the file is removed
        file.truncate(file.size)
