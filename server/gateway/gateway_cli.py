"""`millstream gateway`: one port for all shards of a cluster in etcd."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from millstream.server.config.directives import Config
from millstream.server.gateway.machine_nodes import Nodes
from millstream.server.serve_cli import ServeCommand


@click.command(
    cls=ServeCommand,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
    epilog="Directives of the configuration file can be given as --directive value: those of the "
    "network, TLS, the log and the metrics. With tls-replication, connections to nodes use TLS.",
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
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Configuration file in the format of redis.conf.",
)
@click.argument("directives", nargs=-1, type=click.UNPROCESSED, metavar="[--DIRECTIVE VALUE]...")
def gateway(
    file: Path | None,
    directives: Sequence[str],
    port: str | None,
    bind: str | None,
    **of_cluster: str | None,
) -> None:
    """Run a gateway of a cluster in etcd, for clients that do not know clusters.

    It runs until it is stopped (Ctrl-C, SIGTERM). There may be any number of them, on any
    machine."""
    named = {"port": port, "bind": bind}
    named |= {f"cluster-{name.replace('_', '-')}": value for name, value in of_cluster.items()}
    given = [word for name, value in named.items() if value is not None
             for word in (f"--{name}", value)]  # fmt: skip
    from millstream.server.gateway.gateway_process import serve_nodes

    sys.exit(serve_nodes(file, [*directives, *given], _stored_nodes, retries=True))


def _stored_nodes(config: Config) -> Nodes:
    """The shards of the cluster that the directives name. StartError if they are wrong."""
    from millstream.errors import StartError
    from millstream.server.cluster.store.store_opening import configured_store
    from millstream.server.gateway.stored_nodes import StoredNodes
    from millstream.server.net.tls_contexts import make_link_context

    if not config.cluster.name or not config.cluster.etcd:
        raise StartError("a gateway needs --name and --etcd")
    store, tls = configured_store(config), make_link_context(config)
    return StoredNodes(store, tls, is_protected=config.protected_mode)
