"""Commands about the server itself: INFO, CONFIG and the like.

The server does the work; this module has the syntax and the error texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from millstream import __version__
from millstream.commands.admin.connection import REDIS_VERSION
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import OK, NumberTexts, Verbatim
from millstream.commands.table.containers import Container
from millstream.commands.table.registry import CommandGroup
from millstream.errors import SYNTAX, CommandError

command = CommandGroup("server")


if TYPE_CHECKING:

    class InfoText(Protocol):
        def text(self, names: Sequence[str]) -> str:
            """The text of INFO for these sections (lower case; none: the default ones)."""

    class Directives(Protocol):
        def named(self, name: bytes) -> str | None:
            """The value of the directive with this name in lower case; None for anything else."""

        def matching(self, patterns: Sequence[bytes]) -> dict[str, str]:
            """Directives whose names match one of the globs, in the order of the table."""

    class Settings(Protocol):
        def set(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
            """Sets all of these directives or, with a CommandError, none."""

        def rewrite(self) -> None:
            """Updates the configuration file."""

    class InformationHost(Protocol):
        @property
        def info(self) -> InfoText: ...
        @property
        def config(self) -> Directives: ...
        @property
        def settings(self) -> Settings: ...

        def now_us(self) -> int:
            """Microseconds since the epoch, read at each call."""

        def reset_stats(self) -> None: ...


@command(
    "INFO [section [section ...]]",
    "loading stale dataless nondeterministic_output request_policy:all_shards "
    "response_policy:special @dangerous",
)
def info(ctx: Context[InformationHost], args: Args) -> object:
    """Returns information and statistics about the server.

    The reply is text: `# Section` lines, each followed by `name:value` lines with Redis' names.
    Sections: server, clients, memory, persistence, stats, replication, cpu, modules, commandstats,
    errorstats, latencystats, cluster, keyspace. Without a section, or with `default`, the reply has
    all sections except commandstats and latencystats; with `all` or `everything`, all of them.
    """
    sections = [word.decode("utf-8", "replace").lower() for word in args.rest()]
    return Verbatim(ctx.server.info.text(sections).encode("utf-8", "surrogateescape"))


@command("TIME", "loading stale fast hot dataless nondeterministic_output", since="2.6.0")
def time(ctx: Context[InformationHost], args: Args) -> object:
    """Returns the server time.

    The reply is [seconds since 1970, microseconds of that second] at this moment. Other commands
    use the millisecond in which their batch began.
    """
    seconds, rest_us = divmod(ctx.server.now_us(), 1_000_000)
    return NumberTexts(seconds, rest_us)


# CONFIG

config_command = Container(
    "CONFIG",
    "server",
    "A container for server configuration commands.",
    since="2.0.0",
    tags="admin noscript loading stale dataless",
)


@config_command("GET parameter [parameter ...]", complexity="O(N), N the number of directives")
def config_get(ctx: Context[InformationHost], args: Args) -> object:
    """Returns the effective values of configuration parameters.

    The reply is a map from directive to value, for the directives that match one of the glob
    patterns."""
    config, words = ctx.server.config, args.rest()
    if len(words) == 1 and (value := config.named(words[0])) is not None:
        return {words[0]: value.encode("utf-8", "surrogateescape")}
    found = config.matching(words)
    return {
        name.encode(): value.encode("utf-8", "surrogateescape") for name, value in found.items()
    }


@config_command(
    "SET parameter value [parameter value ...]",
    "audited request_policy:all_nodes response_policy:all_succeeded",
    complexity="O(N), N the number of pairs",
)
def config_set(ctx: Context[InformationHost], args: Args) -> object:
    """Sets configuration parameters in-flight.

    The reply is OK, or an error, in which case none of the pairs has been set."""
    words = args.rest()
    if len(words) % 2:
        raise CommandError(SYNTAX)
    ctx.server.settings.set(list(zip(words[::2], words[1::2], strict=True)))
    return OK


@config_command("RESETSTAT", "audited request_policy:all_nodes response_policy:all_succeeded")
def config_resetstat(ctx: Context[InformationHost], args: Args) -> object:
    """Resets the server's statistics."""
    ctx.server.reset_stats()
    return OK


@config_command(
    "REWRITE",
    "audited request_policy:all_nodes response_policy:all_succeeded",
    since="2.8.0",
    complexity="O(N), N the number of directives",
)
def config_rewrite(ctx: Context[InformationHost], args: Args) -> object:
    """Persists the effective configuration to file.

    The reply is OK when the configuration file has the values that the server uses. Comments and
    the order of lines are kept. Values that differ from the default and are not in the file are
    added at its end. The file is replaced in one step.
    """
    ctx.server.settings.rewrite()
    return OK


# The rest


DRAWING = """\
        .-----.
      .' \\ | / '.
~~~~~/ -- (o) -- \\~~~~~~~~~~~~~~
~~~~~\\   / | \\   /~~~~~~~~~~~~~~
  ~~~~'.      .'~~~~~~~~~~~~~~
    ~~~~'----'~~~~~~~~~~~~~~~~
"""


@command("LOLWUT [VERSION version [argument [argument ...]]]", "readonly fast", since="5.0.0")
def lolwut(ctx: Context, args: Args) -> object:
    """Displays computer art and the server's version.

    The reply is text: a drawing of a water wheel in a stream. There is only one drawing; VERSION
    and the arguments after it must be numbers.
    """
    if args.remaining >= 2 and args.option(b"VERSION"):
        while args.remaining:
            args.take_int()
    return Verbatim(f"{DRAWING}\nRedis ver. {REDIS_VERSION} (millstream {__version__})\n".encode())
