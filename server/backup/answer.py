"""The answer to BACKUP: the description of the data that follows it.

One line, `+BACKUP form version role history base-frame bytes last-frame time crc32`. After it,
everything is a record of a link (server/replication/records): the pieces of the base and its end if
it has any bytes, then the frames after the base up to the last one. Lines without text may come
before it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from millstream.storage.blocks.checksum import crc32

# The form of the answer and what follows it. In form 1, all effects are RESP.
_FORMS = "1", "2"
_WORD = r"\S{1,80}"


class BackupAnswer(NamedTuple):
    """`version` is that of the server and `role` master or slave, as in INFO. The base has the
    frames up to `base_seq` and a size of `base_bytes`, 0 without a base. `last_seq` is the last
    frame of the backup, in the line of history `history`, and `wall_ms` the time of the server when
    it was chosen."""

    version: str
    role: str
    history: str
    base_seq: int
    base_bytes: int
    last_seq: int
    wall_ms: int

    def encode(self) -> bytes:
        text = " ".join(map(str, ("+BACKUP", _FORMS[-1], *self))).encode()
        return b"%s %08x\r\n" % (text, crc32(text))

    @classmethod
    def parse(cls, line: bytes) -> BackupAnswer:
        """ValueError when it is not such a line."""
        text, _, checksum = line.rpartition(b" ")
        title, form, version, role, history, *numbers = text.decode("ascii").split(" ")
        if title != "+BACKUP" or not re.fullmatch(_WORD, version + role + history):
            raise ValueError("it is not an answer to BACKUP")
        if form not in _FORMS:
            raise ValueError("a newer millstream has sent it: use that version for the backup")
        if checksum != b"%08x" % crc32(text):
            raise ValueError("its checksum is wrong")
        base_seq, base_bytes, last_seq, wall_ms = map(int, numbers)
        if min(base_seq, base_bytes, wall_ms) < 0 or last_seq < base_seq:
            raise ValueError("its numbers are wrong")
        return cls(version, role, history, base_seq, base_bytes, last_seq, wall_ms)
