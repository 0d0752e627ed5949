"""The programs that start a server: `millstream serve` for interactive use, and `millstream-server`
with the arguments of redis-server.

If the server cannot start, the program prints one sentence on standard error and exits with code 1,
without a traceback that would hide the sentence.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
import uvloop

from millstream import __version__
from millstream.errors import DamageError, DataError, StartError
from millstream.server.config import directives as configuration
from millstream.server.config.directives import Config
from millstream.server.monitor import huge_pages, log
from millstream.server.monitor.log import LOGGER
from millstream.server.repair.cli_hint import advised

if TYPE_CHECKING:
    from millstream.server.app import Server

SERVER_USAGE = f"""\
millstream-server {__version__}

Usage: millstream-server [FILE] [--directive value ...]
       millstream-server -v | --version
       millstream-server -h | --help

FILE has one directive per line, as redis.conf; the command line takes precedence. Examples:

  millstream-server
  millstream-server /etc/millstream.conf --port 7000
  millstream-server --port 7000 --dir /var/lib/millstream --appendfsync everysec

Directives:
"""


async def _serve(config: Config, file: Path | None) -> bool:
    """Whether all data is on the disk at the end."""
    from millstream.server.app import Server  # after the log is open: loading writes to it

    server = Server(config, config_file=file)

    def on_signal(number: signal.Signals) -> None:
        if server.stopping.is_set():
            _give_up(server)
        server.stop_by_signal(number.name)

    for number in (signal.SIGTERM, signal.SIGINT):
        server.loop.add_signal_handler(number, on_signal, number)
    await server.start()
    await server.stopping.wait()
    _give_up_at_next_signal(server)
    return await server.stop()


def _give_up_at_next_signal(server: Server) -> None:
    """End the process at the next signal. A stop may wait for a slow disk, which blocks the loop. A
    thread receives the signal, because the main thread may be in a system call that does not
    return."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for number in (signal.SIGTERM, signal.SIGINT):
        server.loop.remove_signal_handler(number)
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writer)

    def wait() -> None:
        os.read(reader, 1)
        _give_up(server)

    threading.Thread(target=wait, name="millstream-signals", daemon=True).start()


def _give_up(server: Server) -> NoReturn:
    """End the process immediately, and log which data is not on the disk."""
    try:
        server.persistence.tell_given_up()
    finally:
        os._exit(1)


def run(file: Path | None, arguments: Sequence[str]) -> int:
    """Serve until a stop is requested; return the exit code."""
    try:
        config = configuration.load(file, arguments)
        huge_pages.prepare(config.disable_thp)
        log.configure(config.loglevel, config.logfile, config.log_format)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return 0 if runner.run(_serve(config, file)) else 1
    except DamageError as problem:
        return _refuse(f"{problem}, or see what can be saved: {advised('check', config.dir)}")
    except (StartError, DataError) as problem:
        return _refuse(str(problem))
    except OSError as problem:
        LOGGER.debug("cannot start", exc_info=True)
        name = f" ({problem.filename})" if problem.filename else ""
        return _refuse(f"{problem.strerror or problem}{name}")


def _refuse(sentence: str) -> int:
    print(f"millstream: {sentence}", file=sys.stderr)
    return 1


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
    epilog="Every directive of the configuration file can be given as --directive value; "
    "docs/configuration.md lists them. CONFIG GET * shows them in a running server.",
)
@click.option("--port", metavar="PORT", help="TCP port [default: 6455].")
@click.option("--dir", metavar="FOLDER", help="Data directory [default: data].")
@click.option("--bind", metavar="ADDRESS", help="Address to listen on [default: 127.0.0.1].")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Configuration file, as redis.conf.",
)
@click.argument("directives", nargs=-1, type=click.UNPROCESSED, metavar="[--DIRECTIVE VALUE]...")
def serve(
    port: str | None,
    dir: str | None,
    bind: str | None,
    file: Path | None,
    directives: Sequence[str],
) -> None:
    """Run a server until it is stopped (Ctrl-C, SIGTERM or the command SHUTDOWN)."""
    named = {"port": port, "dir": dir, "bind": bind}
    given = [word for name, value in named.items() if value is not None
             for word in (f"--{name}", value)]  # fmt: skip
    sys.exit(run(file, [*directives, *given]))


def server_help() -> str:
    """The text of `millstream-server --help`: usage, and a line for each directive."""
    config = Config()
    lines = [
        f"  --{directive.name} {_default(config, directive.name)}\n      {directive.meaning}"
        for directive in configuration.DIRECTIVES.values()
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
    file = Path(arguments.pop(0)) if arguments and not arguments[0].startswith("--") else None
    sys.exit(run(file, arguments))


if __name__ == "__main__":
    server_main()
