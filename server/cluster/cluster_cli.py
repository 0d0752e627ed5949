"""`millstream cluster`: the nodes of one machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from millstream.cli_error import CliError
from millstream.errors import DataError, StartError, counted
from millstream.server.cluster.slot_map import read_map
from millstream.server.cluster.unix_sockets import ask_supervisor
from millstream.server.config.cluster_directives import MAP_NAME
from millstream.server.repair.destination import Unusable, stoppable
from millstream.server.serve_cli import SHARDS_MAX

FOLDER = click.Path(path_type=Path, file_okay=False)


@click.group()
def cluster() -> None:
    """Look at a cluster, or copy its data for another number of nodes."""


@cluster.command()
@click.option("--dir", "folder", type=FOLDER, required=True, help="Directory of the nodes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(folder: Path, as_json: bool) -> None:
    """Show the nodes of a directory: slots, process, health.

    The exit code is 0 if all of them are online, and 1 otherwise.
    """
    try:
        slot_map = read_map(folder)
    except StartError as problem:
        raise CliError(str(problem)) from None
    if slot_map is None:
        raise CliError(f"{folder} is no directory of nodes: it has no {MAP_NAME}")
    running = ask_supervisor(folder)
    nodes = running["nodes"] if running else {}
    rows = []
    for shard in slot_map.shards:
        state = nodes.get(str(shard.number), {})
        rows.append(
            {
                "directory": shard.folder,
                "shard": shard.name,
                "node": shard.node,
                "slots": [list(pair) for pair in shard.ranges],
                "health": state.get("health", "not running"),
                "port": state.get("port"),
                "pid": state.get("pid"),
                "frame": state.get("frame"),
            }
        )
    if as_json:
        click.echo(json.dumps({"epoch": slot_map.epoch, "nodes": rows}))
    else:
        for line in _table(rows):
            click.echo(line)
    if any(row["health"] != "online" for row in rows):
        raise SystemExit(1)


def _table(rows: list[dict[str, Any]]) -> list[str]:
    names = ["directory", "shard", "health", "port", "pid", "frame", "slots"]
    texts = [names, *([_shown(row[name]) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in texts
    ]


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(f"{first}-{last}" for first, last in value)
    return "-" if value is None else str(value)


@cluster.command()
@click.argument("source", metavar="DIR", type=FOLDER)
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--shards", type=click.IntRange(1, SHARDS_MAX), required=True, metavar="M",
    help="Number of nodes of the copy.",
)  # fmt: skip
def split(source: Path, out: Path, shards: int) -> None:
    """Copy DIR for M nodes into OUT, which must be absent or empty.

    DIR is a directory of nodes or of a single server, which must not run. It is not changed. All
    data must fit into memory. Start the copy with `millstream serve --shards M --dir OUT`.
    """
    from millstream.server.cluster.splitting import split as split_directory

    try:
        with stoppable():
            counts = split_directory(source, out, shards)
    except (DataError, StartError, Unusable) as problem:
        raise CliError(str(problem)) from None
    except OSError as problem:
        raise CliError(f"{problem.filename or out}: {problem.strerror}") from None
    for number, count in enumerate(counts, start=1):
        click.echo(f"{out / f'{number:04}'}: {counted(count, 'key')}")
