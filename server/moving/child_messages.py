"""The begin of a process that converts something, and its messages: lines of JSON.

A server loads this, and JSON, only with the first such process.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterable, Iterator
from typing import Any


def begin(module: str, work: str, descriptors: Iterable[int], output: int) -> int:
    """Start a process that runs a module of `moving`, with its work as the argument. It gets these
    descriptors, and writes messages to `output`. The number of the process."""
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    words = [sys.executable, "-P", "-m", f"millstream.server.moving.{module}", work]
    actions = [(os.POSIX_SPAWN_DUP2, output, 2)]
    return os.posix_spawn(sys.executable, words, os.environ, file_actions=actions)


def messages_in(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The messages of the process. Other text, of Python itself for example, is a `note`."""
    for line in lines:
        try:
            message = json.loads(line)
        except ValueError:  # also a message that was cut off
            message = None
        yield message if isinstance(message, dict) else {"note": line.strip()}


def limit_memory(most_bytes: int) -> None:
    """In the process: from now on, MemoryError above this size of the address space."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[1]
    wanted = most_bytes if limit < 0 else min(most_bytes, limit)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, limit))


def send(message: dict[str, Any]) -> None:
    """In the process: send a message."""
    sys.stderr.write(json.dumps(message) + "\n")
    sys.stderr.flush()
