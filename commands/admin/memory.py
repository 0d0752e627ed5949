"""MEMORY: the memory of keys and of the process.

The size of a stream is known and that of a string is estimated; server/monitor/memory measures the
memory of the process and how much of it is in use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import OK, Verbatim
from millstream.commands.table.containers import Container
from millstream.errors import SYNTAX, CommandError

KEY_OVERHEAD_BYTES = 120  # a key's place in the table and the headers of its two byte strings
LITTLE_BYTES = 5 * 1024**2  # below this there is nothing to diagnose


if TYPE_CHECKING:

    class ProcessMemory(Protocol):
        def facts(self) -> dict[str, object]:
            """The figures of MEMORY STATS, with its names."""

        def trim(self) -> None:
            """Makes the C library return unused memory to the system."""

    class MemoryHost(Protocol):
        @property
        def memory(self) -> ProcessMemory: ...


memory_command = Container(
    "MEMORY", "server", "A container for memory diagnostics commands.", since="4.0.0"
)


@memory_command("USAGE key [SAMPLES count]", "readonly", keys="RO")
def memory_usage(ctx: Context, args: Args) -> object:
    """Estimates the memory usage of a key.

    The reply is the bytes that the key and its value take, or null if the key does not exist. A
    stream knows its size, so there is no sampling; SAMPLES is accepted but has no effect.
    """
    key = args.take()
    while args.remaining:
        if args.remaining < 2 or not args.option(b"SAMPLES") or args.take_int() < 0:
            raise CommandError(SYNTAX)
    value = ctx.db.get(key)
    if value is None:
        return None
    size = len(value) if isinstance(value, bytes) else value.memory_bytes
    return KEY_OVERHEAD_BYTES + len(key) + size


@memory_command(
    "STATS", "nondeterministic_output request_policy:all_shards response_policy:special"
)
def memory_stats(ctx: Context[MemoryHost], args: Args) -> object:
    """Returns details about memory usage.

    The reply is a map with Redis' names. `total.allocated` is the memory in use: what the process
    holds minus what the C library has free. `dataset.bytes` is that value minus the memory in use
    at start and the memory of clients. `fragmentation` is the memory that the process holds divided
    by the memory in use.
    """
    return {name.encode(): value for name, value in ctx.server.memory.facts().items()}


@memory_command(
    "DOCTOR", "nondeterministic_output request_policy:all_shards response_policy:special"
)
def memory_doctor(ctx: Context[MemoryHost], args: Args) -> object:
    """Outputs a memory problems report.

    The reply is a report as text."""
    facts = ctx.server.memory.facts()
    used, peak = int(str(facts["total.allocated"])), int(str(facts["peak.allocated"]))
    clients, free = int(str(facts["clients.normal"])), int(str(facts["fragmentation.bytes"]))
    if used - int(str(facts["startup.allocated"])) < LITTLE_BYTES:
        text = "There is next to nothing in memory yet, so nothing can be said about it.\n"
    elif peak > used * 1.5:
        text = (
            f"The process once held {peak} bytes, {used} are in use now: {max(free, 0)} are still"
            " held and used again as the data grows.\n"
        )
    elif free > used * 0.5:
        text = (
            f"{free} bytes are held and not in use. They are used again as the data grows; MEMORY"
            " PURGE gives the machine what can be given back.\n"
        )
    elif clients > used * 0.3:
        text = (
            f"Clients take {clients} bytes: CLIENT LIST shows who (tot-mem), and"
            " client-output-buffer-limit bounds it.\n"
        )
    else:
        text = "Nothing unusual was found.\n"
    return Verbatim(text.encode())


@memory_command("PURGE", "request_policy:all_shards response_policy:all_succeeded")
def memory_purge(ctx: Context[MemoryHost], args: Args) -> object:
    """Asks the allocator to release memory.

    The reply is OK, after the C library has returned the memory that it can return."""
    ctx.server.memory.trim()
    return OK


@memory_command(
    "MALLOC-STATS", "nondeterministic_output request_policy:all_shards response_policy:special"
)
def memory_malloc_stats(ctx: Context, args: Args) -> object:
    """Returns the allocator statistics.

    The reply is text: the allocator is the C library's, which has no statistics."""
    return Verbatim(b"Stats not supported for the current allocator")
