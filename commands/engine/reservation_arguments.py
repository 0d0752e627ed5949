"""Arguments of requests for reservations, and the limits of a lease."""

from __future__ import annotations

from millstream.commands.runtime.arguments import Args
from millstream.errors import CommandError

LEASE_DEFAULT_MS = 30_000
LEASE_MAX_MS = 600_000
WRITER_BYTES_MAX = 1024
COUNT_MAX = 10_000
BAD_COUNT = f"ERR COUNT must be from 1 to {COUNT_MAX}"
BAD_LEASE = f"ERR LEASE must be from 1 to {LEASE_MAX_MS}"
BAD_WRITER = f"ERR a writer's name must have 1 to {WRITER_BYTES_MAX} bytes"


def take_writer(args: Args) -> bytes:
    """Take a writer's name."""
    name = args.take()
    if not 1 <= len(name) <= WRITER_BYTES_MAX:
        raise CommandError(BAD_WRITER)
    return name


def take_reserved_ids(args: Args) -> list[tuple[int, int]]:
    """Take all remaining words as the IDs of reservations, without repetitions."""
    ids = [args.take_entry_id(dot_allowed=True) for _ in range(args.remaining)]
    return list(dict.fromkeys(ids))
