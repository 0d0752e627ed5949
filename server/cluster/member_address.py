"""The address of this server in etcd, at which other nodes and clients reach it."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from millstream import __version__
from millstream.errors import StartError
from millstream.server.cluster.store.records import NodeRecord
from millstream.server.config.directives import Config

ANYWHERE = ("*", "0.0.0.0", "::", "")


def announced_record(config: Config, port: int) -> NodeRecord:
    """The address at which other nodes and clients reach this server. StartError if it is not
    known."""
    cluster = config.cluster
    return NodeRecord(
        cluster.announce_ip or _own_address(config),
        cluster.announce_port or port,
        cluster.announce_tls_port or config.tls.port,
        cluster.announce_hostname,
        cluster.zone,
        __version__,
        "",
    )


def _own_address(config: Config) -> str:
    """The address on which this server listens; if that is every one, the one from which it reaches
    etcd."""
    named = [one for one in config.bind if one.lstrip("-") not in ANYWHERE]
    if named:
        return named[0].lstrip("-")
    url = config.cluster.etcd.replace(",", " ").split()[0]
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        [(family, _, _, _, address), *_] = socket.getaddrinfo(
            parts.hostname, parts.port or 2379, type=socket.SOCK_DGRAM
        )
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        raise StartError(
            "the address of this machine is not known: give it with cluster-announce-ip"
        ) from None
