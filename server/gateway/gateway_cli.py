"""`millstream gateway`: one port for all shards of a cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from millstream.errors import StartError
from millstream.server.config.directives import Config
from millstream.server.gateway.machine_nodes import Nodes
from millstream.server.serve_cli import ServeCommand, as_directives, config_option

BOTH = (
    "a gateway takes --dir for the nodes of this machine, or --name and --etcd for those of many, "
    "not both"
)


@click.command(
    cls=ServeCommand,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
    epilog="Directives of the configuration file can be given as --directive value: those of the "
    "network, TLS, the log and the metrics. With tls-replication, connections to nodes use TLS.",
)
@click.option(
    "--dir", metavar="FOLDER", help="Directory of nodes that run on this machine (serve --shards)."
)
@click.option("--name", metavar="NAME", help="Name of the cluster in etcd.")
@click.option("--etcd", metavar="URLS", help="URLs of etcd, with commas between them.")
@click.option("--etcd-user", metavar="USER", help="User of etcd.")
@click.option("--etcd-password-file", metavar="FILE", help="File with the password of this user.")
@click.option(
    "--etcd-cacert", metavar="FILE",
    help="Authorities of etcd's certificates, in PEM [default: those of the system].",
)  # fmt: skip
@click.option("--etcd-cert", metavar="FILE", help="Certificate of this client of etcd, in PEM.")
@click.option("--etcd-key", metavar="FILE", help="Key of this certificate, in PEM.")
@click.option("--port", metavar="PORT", help="TCP port [default: 6455].")
@click.option("--bind", metavar="ADDRESS", help="Address to listen on [default: 127.0.0.1].")
@config_option
@click.argument("directives", nargs=-1, type=click.UNPROCESSED, metavar="[--DIRECTIVE VALUE]...")
def gateway(
    file: Path | None,
    directives: Sequence[str],
    dir: str | None,
    port: str | None,
    bind: str | None,
    **of_cluster: str | None,
) -> None:
    """Run a gateway of a cluster, for clients that do not know clusters.

    Give --name and --etcd for nodes on many machines, or --dir for those of this one. It runs until
    it is stopped (Ctrl-C, SIGTERM). There may be any number of them, also on one port."""
    named = {"port": port, "bind": bind, "dir": dir}
    named |= {f"cluster-{name.replace('_', '-')}": value for name, value in of_cluster.items()}
    from millstream.server.gateway.gateway_process import serve_nodes

    def nodes_of(config: Config) -> Nodes:
        if dir is None:
            return _stored_nodes(config)
        if config.cluster.name or config.cluster.etcd:
            raise StartError(BOTH)
        return _nodes_of_machine(config)

    sys.exit(serve_nodes(file, [*directives, *as_directives(named)], nodes_of, is_shared=True))


def _nodes_of_machine(config: Config) -> Nodes:
    """The nodes of a directory. StartError if there are none, or they do not run."""
    from millstream.server.gateway.machine_nodes import MachineNodes, map_of
    from millstream.server.gateway.supervisor_questions import SupervisorQuestions

    slot_map = map_of(config.dir)
    questions = SupervisorQuestions(config.dir)
    return MachineNodes(slot_map, config.port, asking=questions, folder=config.dir)


def _stored_nodes(config: Config) -> Nodes:
    """The shards of the cluster that the directives name. StartError if they are wrong."""
    from millstream.server.cluster.store.store_opening import configured_store
    from millstream.server.gateway.stored_nodes import StoredNodes
    from millstream.server.net.tls_contexts import make_link_context

    if not config.cluster.name or not config.cluster.etcd:
        raise StartError("a gateway needs --name and --etcd, or --dir")
    store, tls = configured_store(config), make_link_context(config)
    return StoredNodes(store, tls, name=config.cluster.name, is_protected=config.protected_mode)
