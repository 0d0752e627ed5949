"""The users of all nodes of one machine: their aclfile, which the supervisor writes.

ACL SETUSER and DELUSER on any node change the file, and then the other nodes read it. A node may
have changed another user meanwhile. So the supervisor merges changes by user, and tells each node
which of its changes are in the file: a node reads it only if all are.
"""

from __future__ import annotations

import contextlib
from codecs import BOM_UTF8
from pathlib import Path

from millstream.errors import StartError
from millstream.server.config.directives import Config
from millstream.server.config.file_replacement import replace_file
from millstream.server.monitor.log import LOGGER

NAME = "users.acl"  # in the directory of the nodes, if no aclfile is given


class SharedUsers:
    """The aclfile. `seen` has the number of the last change of each node that is in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: dict[int, int] = {}

    def change(self, node: int, number: int, name: bytes, line: bytes | None) -> bool:
        """A node has changed a user, or removed it (None). False if the file cannot be written; the
        log says so."""
        try:
            lines = self._lines()
            kept = [one for one in lines if _name_of(one) != name]
            text = b"".join(one + b"\n" for one in (*kept, *([] if line is None else [line])))
            replace_file(self.path, text, mode=0o600)
        except OSError as problem:
            LOGGER.error("the users cannot be written to %s: %s", self.path, problem.strerror)
            return False
        self.seen[node] = number
        return True

    def _lines(self) -> list[bytes]:
        data = b""
        with contextlib.suppress(FileNotFoundError):
            data = self.path.read_bytes().removeprefix(BOM_UTF8)
        return [line for line in data.split(b"\n") if line.strip()]

    def forget(self, node: int) -> None:
        """A node begins again to count its changes."""
        self.seen[node] = 0


def _name_of(line: bytes) -> bytes | None:
    """The user of a line; None for a comment."""
    words = line.split()
    return words[1] if len(words) > 1 and words[0] == b"user" else None


def users_path(config: Config) -> Path:
    """The aclfile of the configuration; without one, a file in the directory of the nodes.
    StartError if the configuration has users elsewhere."""
    if config.user_lines:
        raise StartError(
            f"{config.user_lines[0].where}: `user` lines cannot be given with --shards: write the "
            "users into an aclfile, which all nodes share"
        )
    return Path(config.located(config.aclfile or NAME)).absolute()


def open_users(config: Config) -> SharedUsers:
    """The file of the users. Without a directive, it is made if it does not exist; StartError if
    that is impossible."""
    path = users_path(config)
    try:
        if not config.aclfile and not path.exists():
            replace_file(path, b"", mode=0o600)
    except OSError as problem:
        raise StartError(f"cannot write {path}: {problem.strerror}") from None
    return SharedUsers(path)
