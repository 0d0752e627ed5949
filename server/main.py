"""Starting a server: `millstream-server`, with the arguments of redis-server, and what it shares
with `millstream serve` (server/serve_cli).

If the server cannot start, the program prints one sentence on standard error and exits with code 1,
without a traceback that would hide the sentence.

This module imports little, and the rest where it is used: the process executes itself again if that
gives it huge pages (server/monitor/huge_pages), mostly before it reads the configuration.
"""

from __future__ import annotations

import gc
import os
import sys

from millstream import __version__
from millstream.server.monitor import huge_pages

TYPE_CHECKING = False  # as in millstream/__init__
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from millstream.server.config.directives import Config

SERVER_USAGE = f"""\
millstream-server {__version__}

Usage: millstream-server [FILE] [--directive value ...]
       millstream-server -v | --version
       millstream-server -h | --help

FILE has one directive per line, like redis.conf; the command line takes precedence. Examples:

  millstream-server
  millstream-server /etc/millstream.conf --port 7000
  millstream-server --port 7000 --dir /var/lib/millstream --appendfsync everysec

Directives:
"""


def run(file: Path | None, arguments: Sequence[str], *, only_check: bool = False) -> int:
    """Serve until a stop is requested, or only check the configuration; return the exit code."""
    # Imports make many objects and hardly any garbage. A server enables collections when it has
    # started.
    gc.disable()
    from millstream.errors import DamageError, DataError, StartError
    from millstream.server.config.loading import load

    try:
        config = load(file, arguments)
        if only_check:
            from millstream.server.config_check import NOT_CHECKED, check_config, check_machine

            for warning in check_config(config, file) + check_machine(config):
                print(f"millstream: warning: {warning}", file=sys.stderr)
            print(f"millstream: the configuration is valid\nmillstream: {NOT_CHECKED}")
            return 0
        # With huge pages, the event loop's buffer takes 256 KB in each TLS connection.
        huge_pages.prepare(config.disable_thp or config.tls.port > 0)
        from millstream.server.life import serve_until_stopped

        return 0 if serve_until_stopped(config, file, arguments) else 1
    except DamageError as problem:
        from millstream.server.repair.cli_hint import advised

        return _refuse(f"{problem}, or see what can be recovered: {advised('check', config.dir)}")
    except (StartError, DataError) as problem:
        return _refuse(str(problem))
    except OSError as problem:
        import logging

        logging.getLogger("millstream").debug("cannot start", exc_info=True)
        name = f" ({problem.filename})" if problem.filename else ""
        return _refuse(f"{problem.strerror or problem}{name}")


def _refuse(sentence: str) -> int:
    print(f"millstream: {sentence}", file=sys.stderr)
    return 1


def server_help() -> str:
    """The text of `millstream-server --help`: usage, and a line for each directive."""
    from millstream.server.config.directives import DIRECTIVES, Config

    config = Config()
    lines = [
        f"  --{directive.name} {_default(config, directive.name)}\n      {directive.meaning}"
        for directive in DIRECTIVES.values()
    ]
    return SERVER_USAGE + "\n".join(lines)


def _default(config: Config, name: str) -> str:
    return "data" if name == "dir" else config.shown(name) or '""'


def _print(text: str) -> None:
    """Print to standard output, which may be a pipe that its reader has closed."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end
        sys.exit(1)


def server_main() -> None:
    """`millstream-server [FILE] [--directive value ...]`."""
    arguments = sys.argv[1:]
    if arguments in (["-h"], ["--help"]):
        _print(server_help())
        sys.exit(0)
    if arguments in (["-v"], ["--version"]):
        _print(f"millstream-server {__version__}")
        sys.exit(0)
    name = arguments.pop(0) if arguments and not arguments[0].startswith("--") else None
    if name is None:
        huge_pages.prepare_early(arguments)
    from pathlib import Path

    sys.exit(run(None if name is None else Path(name), arguments))


if __name__ == "__main__":
    server_main()
