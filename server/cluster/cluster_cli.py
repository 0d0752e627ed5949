"""`millstream cluster`: clusters on one machine and on many."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from millstream.cli_error import CliError
from millstream.errors import DataError, StartError, counted
from millstream.seconds import Seconds
from millstream.server.cluster.backup_sources import map_in
from millstream.server.cluster.cluster_backup_cli import backup, restore
from millstream.server.cluster.move_cli import (
    add_shard_command,
    cancel_command,
    drain_command,
    move_command,
    rebalance_command,
)
from millstream.server.cluster.recovery_cli import init_from_nodes, recovery_options
from millstream.server.cluster.store.records import ShardChange
from millstream.server.cluster.store.store_opening import StoreSettings
from millstream.server.cluster.store_cli import (
    STORED_SHARDS_MAX,
    create,
    durable_option,
    given,
    has_all,
    look,
    members_option,
    moves_of,
    require_enough,
    reshape,
    rows_of,
    run_with_store,
    store_options,
    warnings_of,
)
from millstream.server.cluster.store_recovery import ExpectedSize
from millstream.server.cluster.unix_sockets import ask_supervisor
from millstream.server.repair.destination import Unusable, stoppable
from millstream.server.serve_cli import SHARDS_MAX

F = TypeVar("F", bound=Callable[..., Any])
FOLDER = click.Path(path_type=Path, file_okay=False)


@click.group()
def cluster() -> None:
    """Create a cluster, look at it and change it, or copy its data for another number of nodes."""


@cluster.command()
@store_options
@click.option(
    "--shards", type=click.IntRange(1, STORED_SHARDS_MAX), metavar="S",
    help="Number of shards, which share the slots.",
)  # fmt: skip
@members_option("Number of nodes of a shard.", 3)
@durable_option("1, or 0 if a shard has one node")
@recovery_options
def init(
    shards: int | None,
    members: int,
    durable: int | None,
    from_nodes: tuple[tuple[str, int], ...],
    lost: tuple[str, ...],
    url: str,
    timeout_s: float,
    **settings: str,
) -> None:
    """Create a cluster in etcd, for nodes on many machines.

    With --from-nodes, write the records of a cluster whose etcd was lost, or was restored from an
    old backup: from what its nodes know. Name as many of them as run. Nothing is written if a
    confirmed write could be lost, or if --shards, --members or --durable are given and the
    cluster has others.
    """
    if from_nodes:
        size = ExpectedSize(shards, members if _is_given("members") else None, durable)
        init_from_nodes(StoreSettings(**settings), from_nodes, lost, url, timeout_s, size)
        return
    if lost or shards is None:
        raise click.UsageError("--lost needs --from-nodes." if lost else "--shards is missing.")
    durable = min(1, members - 1) if durable is None else durable
    require_enough(members, durable)
    run_with_store(StoreSettings(**settings), lambda store: create(store, shards, members, durable))
    click.echo(
        f"{settings['name']}: {counted(shards, 'shard')} of {counted(members, 'member')}; a "
        f"confirmed write is on {counted(durable + 1, 'disk')}"
    )


def _is_given(name: str) -> bool:
    """True if the value of this option is not its default."""
    source = click.get_current_context().get_parameter_source(name)
    return source is not click.core.ParameterSource.DEFAULT


@cluster.command()
@click.option("--dir", "folder", type=FOLDER, help="Directory of the nodes of one machine.")
@store_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(folder: Path | None, as_json: bool, **settings: str) -> None:
    """Show the nodes of a cluster.

    Give --dir for the nodes of one machine, and --name and --etcd for those of many. The exit code
    is 0 if all of them are online and serve their slots, and 1 otherwise. In etcd, nodes of a shard
    without slots do not count.
    """
    if (folder is None) != any(settings.values()):
        raise click.UsageError("Give either --dir, or --name and --etcd.")
    if folder is not None:
        is_complete = _show_machine(folder, as_json)
    else:
        found = run_with_store(StoreSettings(**settings), look)
        lines = [*_table([*rows_of(found)]), *moves_of(found)]
        click.echo(json.dumps(found) if as_json else "\n".join(lines))
        for warning in warnings_of(found):
            click.echo(f"millstream: warning: {warning}", err=True)
        is_complete = has_all(found)
    if not is_complete:
        raise SystemExit(1)


def _show_machine(folder: Path, as_json: bool) -> bool:
    """Show the nodes of a directory and the gateways: slots, process, health. Whether all are
    online."""
    slot_map = map_in(folder)
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
    gateways = _gateways(running)
    if as_json:
        found = {"epoch": slot_map.epoch, "nodes": rows, "gateways": gateways}
        click.echo(json.dumps({**found, "gateway": gateways[0] if gateways else None}))
    rows += gateways
    if not as_json:
        names = ["directory", "shard", "health", "port", "pid", "frame", "slots"]
        texts = [names, *([_shown(row[name]) for name in names] for row in rows)]
        for line in _table(texts):
            click.echo(line)
    return all(row["health"] == "online" for row in rows)


def _gateways(running: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The rows of the gateways; empty if no process runs."""
    row = {"directory": "gateway", **dict.fromkeys(("shard", "node", "slots", "frame"))}
    return [{**row, **state} for state in (running or {}).get("gateways", ())]


def _table(texts: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in texts
    ]


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(f"{first}-{last}" for first, last in value)
    return "-" if value is None else str(value)


def _timeout(default_s: int, end: str = "the data is copied") -> Callable[[F], F]:
    return click.option(
        "--timeout", "timeout_s", type=Seconds(min=0), default=default_s, show_default=True,
        metavar="SECONDS", help=f"Time to wait until {end}.",
    )  # fmt: skip


@cluster.command()
@click.argument("shard")
@click.argument("node", callback=given)
@store_options
@_timeout(3600)
def add(shard: str, node: str, timeout_s: float, **settings: str) -> None:
    """Make NODE a further member of SHARD.

    NODE is the ID of a node that runs and is not a member of a shard, or the beginning of the ID.
    It is a member as soon as it has the data of the shard.
    """
    _reshape(ShardChange(node, ""), shard, timeout_s, settings)


@cluster.command(short_help="Take a member out of a shard.")
@click.argument("shard")
@click.argument("node", callback=given)
@store_options
@_timeout(60, "the other members have all that was confirmed")
def remove(shard: str, node: str, timeout_s: float, **settings: str) -> None:
    """Take the member NODE out of SHARD, which then has one member less.

    NODE is the ID of a member that is not the primary, or the beginning of the ID; it need not run.
    It leaves as soon as enough of the others have all that was confirmed.
    """
    _reshape(ShardChange("", node), shard, timeout_s, settings)


@cluster.command(short_help="Replace a member of a shard with another node.")
@click.argument("old", callback=given)
@click.argument("new", callback=given)
@store_options
@_timeout(3600)
def replace(old: str, new: str, timeout_s: float, **settings: str) -> None:
    """Make the node NEW a member of the shard of OLD, in place of OLD.

    OLD is the ID of a member that is not the primary, or the beginning of the ID; it need not run.
    NEW has to run: a node whose disk was lost has a new ID when it starts again.
    """
    _reshape(ShardChange(new, old), "", timeout_s, settings)


def _reshape(change: ShardChange, shard: str, timeout_s: float, settings: dict[str, str]) -> None:
    name = run_with_store(
        StoreSettings(**settings), lambda store: reshape(store, change, shard, timeout_s)
    )
    click.echo(f"shard {name} has its new members")


for _command in (
    move_command,
    rebalance_command,
    drain_command,
    cancel_command,
    add_shard_command,
):
    cluster.add_command(_command)
cluster.add_command(backup)
cluster.add_command(restore)


@cluster.command(short_help="Copy the data for another number of nodes.")
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
