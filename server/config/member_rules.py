"""The rules for the configuration of a node of a cluster in etcd, at the start and later."""

from __future__ import annotations

from millstream.errors import StartError
from millstream.server.config.directives import Config


def check_member(config: Config) -> None:
    """StartError if this server is a node of a cluster in etcd, and cannot be with these values."""
    if not config.cluster.name:
        return
    if config.replicaof:
        raise StartError(
            "replicaof cannot be given with cluster-name: etcd says who the primary is"
        )
    if not config.appendonly or config.appendfsync != "always":
        raise StartError(
            "cluster-name needs appendonly yes and appendfsync always: what a node confirms is on "
            "its disk"
        )
    for name, count in (
        ("replicas-durable", config.replicas_durable),
        ("min-replicas-to-write", config.min_replicas_to_write),
    ):
        if count:
            raise StartError(
                f"{name} cannot be given with cluster-name: a write waits for as many members as "
                "--durable of `millstream cluster init` says"
            )
