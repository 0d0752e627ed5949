"""`millstream cluster backup` and `restore`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from millstream.errors import counted
from millstream.server.backup.backup_cli import CODES, check_option
from millstream.server.cluster.backup_sources import MachineSource, StoredSource, map_in
from millstream.server.cluster.cluster_backup import Source, back_up
from millstream.server.cluster.cluster_restoring import Size, restore_cluster, shown
from millstream.server.cluster.store.store_opening import StoreSettings
from millstream.server.cluster.store_cli import durable_option, members_option, store_options
from millstream.server.repair.destination import stoppable
from millstream.tools.tool_connection import timeout_option, url_option

FOLDER = click.Path(path_type=Path)


@click.command(epilog=CODES, short_help="Copy the data of all shards into a folder.")
@click.argument("final", metavar="DEST", type=FOLDER)
@click.option("--dir", "folder", type=FOLDER, help="Directory of the nodes of one machine.")
@store_options
@url_option
@timeout_option("How long a node may send nothing.")
@check_option(
    "Check each copy as `millstream check` does; loading all of a shard takes as much memory as "
    "its server, checking the files does not."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def backup(
    final: Path,
    folder: Path | None,
    url: str,
    timeout_s: float,
    level: str,
    as_json: bool,
    **settings: str,
) -> None:
    """Copy the data of all shards of a running cluster, its map and its users into the new folder
    DEST.

    Give --dir for the nodes of one machine, which may also be stopped, and --name and --etcd for
    those of many. The primary of each shard is copied. The copies are of different moments; each
    has everything that was acknowledged before the backup began. No slots move meanwhile.

    The user, the password and the TLS of --url are used for all nodes; its host and port are not,
    except the host for --dir, and the port of the gateway with TLS. The user needs the rights to
    BACKUP and to CLUSTER MYID.
    """
    if (folder is None) != any(settings.values()):
        raise click.UsageError("Give either --dir, or --name and --etcd.")
    source: Source
    if folder is None:
        source = StoredSource(StoreSettings(**settings), url, timeout_s)
    else:
        source = MachineSource(folder, map_in(folder), url, timeout_s)
    with stoppable():
        found = back_up(source, final, level)
    if as_json:
        click.echo(json.dumps({"path": str(final), "shards": found}))
        return
    for facts in found:
        click.echo(f"shard {facts['shard']}: {facts['bytes']} bytes, frame {facts['last_frame']}")
    click.echo(f"{final}: {counted(len(found), 'shard')}")


@click.command(
    epilog=CODES.replace("DEST", "OUT"), short_help="Make a new cluster with the data of a backup."
)
@click.argument("source", metavar="BACKUP", type=FOLDER)
@click.argument("out", metavar="OUT", type=FOLDER)
@store_options
@members_option("Number of nodes of a shard [default: as in the backup].")
@durable_option("as in the backup")
def restore(
    source: Path, out: Path, members: int | None, durable: int | None, **settings: str
) -> None:
    """Make a new cluster with the data of BACKUP, which is checked first and not changed.

    With --name and --etcd, OUT gets a data directory for each member of each shard, and etcd the
    records of a cluster with a new name. Each directory is the `dir` of one server with this
    `cluster-name`; all members have the data, so they need not copy it. Move each one to its
    machine, and start the servers.

    Without them, OUT is a directory of nodes of one machine: start it with `millstream serve
    --shards`.
    """
    stored = StoreSettings(**settings) if any(settings.values()) else None
    if stored is None and (members is not None or durable is not None):
        raise click.UsageError("--members and --durable need --name and --etcd.")
    with stoppable():
        nodes = restore_cluster(source, out, Size(members, durable), stored)
    for line in shown(nodes, out):
        click.echo(line)
