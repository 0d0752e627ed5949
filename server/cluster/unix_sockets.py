"""Unix sockets in the directories of a cluster: of the supervisor, and of the nodes for each other.

Only users who may write to the directory can connect. A path of a socket may have about 100 bytes.
With a longer one, a socket is reached through a descriptor of its folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SUPERVISOR = "supervisor.sock"
TIMEOUT_S = 5.0
PATH_MAX_BYTES = 107  # of a socket, in Linux


@contextlib.contextmanager
def _short_path(folder: Path, name: str) -> Iterator[str]:
    """A path that is short, whatever that of the folder."""
    path = str(folder / name)
    if len(os.fsencode(path)) <= PATH_MAX_BYTES:
        yield path
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def listening_socket(folder: Path, name: str) -> socket.socket:
    """A listening socket in the folder, which the caller has locked: one that is left there is that
    of an ended process."""
    (folder / name).unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX)
    try:
        with _short_path(folder, name) as path:
            bound.bind(path)
        (folder / name).chmod(0o600)
        bound.listen()
    except OSError:
        bound.close()
        raise
    return bound


def connected_socket(folder: Path, name: str) -> socket.socket:
    """A connection that does not block. OSError if no process listens."""
    found = socket.socket(socket.AF_UNIX)
    found.setblocking(False)
    try:
        with _short_path(folder, name) as path:
            found.connect(path)
    except OSError:
        found.close()
        raise
    return found


def ask_supervisor(folder: Path) -> dict[str, Any] | None:
    """The answer of the supervisor of a directory; None if none runs."""
    with socket.socket(socket.AF_UNIX) as asking, _short_path(folder, SUPERVISOR) as path:
        asking.settimeout(TIMEOUT_S)
        try:
            asking.connect(path)
            with asking.makefile("rb") as answer:
                found: dict[str, Any] = json.loads(answer.readline())
        except (OSError, ValueError):
            return None
    return found
