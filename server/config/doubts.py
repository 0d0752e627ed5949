"""What in a valid configuration does not do what its author may expect. `serve --check` prints
these warnings, and a start logs them."""

from __future__ import annotations

import os
from pathlib import Path

from millstream.server.config.directives import Config


def doubts(config: Config, file: Path | None) -> list[str]:
    """One sentence for each doubt."""
    found = []
    if config.replicas_durable and not config.appendonly:
        found.append(
            "replicas-durable needs appendonly yes: a server without a journal has no replicas, so"
            " it refuses writes"
        )
    if (config.replicas_durable or config.replicaof) and not _is_replaceable(file):
        found.append(
            f"{_what(file)}: after a failover, Sentinel cannot record the role of this server, and"
            " a restart returns to the earlier role"
        )
    return found


def _is_replaceable(file: Path | None) -> bool:
    """Whether CONFIG REWRITE can write the file: it makes a new one next to it."""
    return file is not None and os.access(file.absolute().parent, os.W_OK)


def _what(file: Path | None) -> str:
    return "there is no configuration file" if file is None else f"{file} cannot be replaced"
