"""SLOWLOG and LATENCY: slow commands, and the durations of all commands.

The server measures and records; this module has the syntax and the replies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import OK, Verbatim
from millstream.commands.table.containers import Container, wrong_subcommand
from millstream.errors import CommandError, shown

SLOWLOG_COUNT = 10
BAD_COUNT = "ERR count should be greater than or equal to -1"


if TYPE_CHECKING:

    class SlowlogEntries(Protocol):
        def entries(self, count: int) -> Sequence[Iterable[object]]:
            """The newest entries, newest first, -1 for all: number, unix time in seconds,
            microseconds, words, address, name."""

        def clear(self) -> None: ...
        def __len__(self) -> int: ...

    class LatencySeries(Protocol):
        """Latency spikes by event."""

        threshold_ms: int

        def latest(self) -> list[tuple[str, int, int, int]]:
            """(event, unix time in seconds and milliseconds of the last spike, greatest ever)."""

        def history(self, event: str) -> list[list[int]]:
            """[unix time in seconds, milliseconds], oldest first."""

        def reset(self, events: list[str]) -> int:
            """Forgets these events, or all when none is named; returns their number."""

        def counts(self) -> dict[str, list[int]]:
            """For each command that was called, the number of calls that took up to 1, 2, 4 ...
            microseconds; empty while latency-tracking is off."""

    class MonitoringHost(Protocol):
        @property
        def slowlog(self) -> SlowlogEntries: ...
        @property
        def latency(self) -> LatencySeries: ...


# SLOWLOG

slowlog_command = Container(
    "SLOWLOG",
    "server",
    "A container for slow log commands.",
    since="2.2.12",
    tags="admin loading stale",
)


@slowlog_command(
    "GET [count]",
    "request_policy:all_nodes nondeterministic_output",
    complexity="O(N), N the number of entries returned",
)
def slowlog_get(ctx: Context[MonitoringHost], args: Args) -> object:
    """Returns the slow log's entries.

    The reply is the latest `count` entries (10 by default; -1 for all), newest first, each as
    [number, Unix time in seconds, microseconds, arguments, client's address, client's name]. A
    request is cut after 32 arguments, and an argument after 128 bytes. Passwords are not shown.
    """
    count = SLOWLOG_COUNT
    if args.remaining > 1:
        raise wrong_subcommand("SLOWLOG", args[1])
    if args.remaining:
        count = args.take_int_or(BAD_COUNT)
        if count < -1:
            raise CommandError(BAD_COUNT)
    return [list(entry) for entry in ctx.server.slowlog.entries(count)]


@slowlog_command("LEN", "request_policy:all_nodes response_policy:agg_sum nondeterministic_output")
def slowlog_len(ctx: Context[MonitoringHost], args: Args) -> object:
    """Returns the number of entries in the slow log."""
    return len(ctx.server.slowlog)


@slowlog_command(
    "RESET",
    "audited request_policy:all_nodes response_policy:all_succeeded",
    complexity="O(N), N the number of entries",
)
def slowlog_reset(ctx: Context[MonitoringHost], args: Args) -> object:
    """Clears all entries from the slow log."""
    ctx.server.slowlog.clear()
    return OK


# LATENCY

latency_command = Container(
    "LATENCY",
    "server",
    "A container for latency diagnostics commands.",
    since="2.8.13",
    tags="admin noscript loading stale",
)


@latency_command(
    "LATEST", "nondeterministic_output request_policy:all_nodes response_policy:special"
)
def latency_latest(ctx: Context[MonitoringHost], args: Args) -> object:
    """Returns the latest latency samples for all events.

    For each event: [name, Unix time in seconds and milliseconds of the last spike, greatest
    milliseconds ever]. Events: `command`, and `fast-command` for commands with the flag fast.
    """
    return [[event.encode(), *figures] for event, *figures in ctx.server.latency.latest()]


@latency_command(
    "HISTORY event", "nondeterministic_output request_policy:all_nodes response_policy:special"
)
def latency_history(ctx: Context[MonitoringHost], args: Args) -> object:
    """Returns timestamp-latency samples for an event.

    The reply is [Unix time in seconds, milliseconds], oldest first, at most 160."""
    return ctx.server.latency.history(shown(args.take()))


@latency_command(
    "RESET [event [event ...]]", "audited request_policy:all_nodes response_policy:agg_sum"
)
def latency_reset(ctx: Context[MonitoringHost], args: Args) -> object:
    """Resets the latency data for one or more events.

    The reply is the number of events that had samples."""
    return ctx.server.latency.reset([shown(word) for word in args.rest()])


LEVELS = "_-=#"  # of a column, from low to high
GRAPH_COLUMNS = 80
GRAPH_ROWS = 4


@latency_command(
    "GRAPH event", "nondeterministic_output request_policy:all_nodes response_policy:special"
)
def latency_graph(ctx: Context[MonitoringHost], args: Args) -> object:
    """Returns a latency graph for an event.

    The reply is a graph as text: one column per second, the newest on the right, with the age below
    each column.
    """
    event = shown(args.take())
    samples = ctx.server.latency.history(event)
    if not samples:
        raise CommandError(f"ERR No samples available for event '{event}'")
    return Verbatim(graph(event, samples[-GRAPH_COLUMNS:], ctx.now_ms // 1000).encode())


def graph(event: str, samples: Sequence[Sequence[int]], now_s: int) -> str:
    """The text of LATENCY GRAPH for [second, milliseconds] samples."""
    figures = [milliseconds for _, milliseconds in samples]
    high, low = max(figures), min(figures)
    head = f"{event} - high {high} ms, low {low} ms (all time high {high} ms)\n"
    steps = GRAPH_ROWS * len(LEVELS)
    heights = [1 + (figure - low) * (steps - 1) // max(1, high - low) for figure in figures]
    rows = [
        "".join(_cell(height - row * len(LEVELS)) for height in heights)
        for row in reversed(range(GRAPH_ROWS))
    ]
    ages = [age_text(max(0, now_s - second)) for second, _ in samples]
    longest = max(map(len, ages))
    below = ["".join(age.ljust(longest)[at] for age in ages) for at in range(longest)]
    drawing = "\n".join(row.rstrip() for row in [*rows, "", *below])
    return f"{head}{'-' * GRAPH_COLUMNS}\n{drawing}\n"


def _cell(height: int) -> str:
    return " " if height <= 0 else LEVELS[min(height, len(LEVELS)) - 1]


def age_text(seconds: int) -> str:
    """A time span in two or three letters: 7s, 12m, 3h, 2d."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


MONITORING_OFF = (
    "Latency monitoring is disabled in this server. CONFIG SET latency-monitor-threshold "
    "<milliseconds> enables it: every command that takes at least that long is then recorded.\n"
)
ADVICE = {
    "command": "SLOWLOG GET shows these commands (slowlog-log-slower-than sets the limit). "
    "Long ranges, KEYS, FLUSHALL of many keys and DEBUG take the longest.",
    "fast-command": "These commands are quick: check whether the machine is busy with "
    "something else, or is swapping.",
}


@latency_command(
    "DOCTOR", "nondeterministic_output request_policy:all_nodes response_policy:special"
)
def latency_doctor(ctx: Context[MonitoringHost], args: Args) -> object:
    """Returns a human-readable latency analysis report.

    The reply is a text report on the samples."""
    monitor = ctx.server.latency
    if not monitor.threshold_ms and not monitor.latest():
        return Verbatim(MONITORING_OFF.encode())
    parts = []
    for event, _, _, greatest_ms in monitor.latest():
        figures = [milliseconds for _, milliseconds in monitor.history(event)]
        mean_ms = sum(figures) // len(figures)
        parts.append(
            f"{event}: {len(figures)} latency spikes (average {mean_ms} ms, worst "
            f"{greatest_ms} ms). {ADVICE.get(event, '')}\n"
        )
    text = "".join(parts) or "No latency spike has been recorded so far.\n"
    return Verbatim(text.encode())


@latency_command(
    "HISTOGRAM [command [command ...]]",
    "nondeterministic_output request_policy:all_nodes response_policy:special",
    since="7.0.0",
    complexity="O(N), N the number of commands",
)
def latency_histogram(ctx: Context[MonitoringHost], args: Args) -> object:
    """Returns the cumulative distribution of latencies of a subset or all commands.

    The reply is a map from command (a subcommand as `container|sub`) to its `calls` and
    `histogram_usec`: the number of calls that took at most that many microseconds, at powers of
    two. Commands that were not called are left out. Consecutive calls of one command in a pipeline
    share their total time.
    """
    counts = ctx.server.latency.counts()
    wanted = [word.lower().decode("utf-8", "replace") for word in args.rest()]
    names = list(counts) if not wanted else [name for word in wanted for name in _of(word, counts)]
    return {name.encode(): _histogram(counts[name]) for name in dict.fromkeys(names)}


def _of(word: str, counts: dict[str, list[int]]) -> list[str]:
    """The command with this name, or the subcommands of this container."""
    return [name for name in counts if name == word or name.startswith(word + "|")]


def _histogram(counts: list[int]) -> dict[bytes, object]:
    total = 0
    cumulated = {}
    for exponent, count in enumerate(counts):
        if count:
            total += count
            cumulated[2**exponent] = total
    return {b"calls": total, b"histogram_usec": cumulated}
