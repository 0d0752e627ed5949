"""The directives of a node of a cluster."""

from __future__ import annotations

from functools import partial

from millstream.server.config.apply import READ, of_cluster_state
from millstream.server.config.kinds import YES_NO, directive, integer, one_of
from millstream.server.config.replica_directives import HOST
from millstream.server.config.store_directives import StoreDirectives
from millstream.storage.files.manifest import NODES_NAME

cluster = partial(directive, section="Cluster")
BY_IP, BY_HOSTNAME, UNKNOWN = "ip", "hostname", "unknown-endpoint"
# Here, so that a server without a cluster loads no module of one.
MAP_NAME = NODES_NAME
SUPERVISOR_VARIABLE = "MILLSTREAM_SUPERVISOR"
NODE_COUNT_VARIABLE = "MILLSTREAM_NODES"  # of one machine: maxmemory is divided by it


class ClusterDirectives(StoreDirectives):
    """`Config.cluster`: the mode, and the address that clients are told."""

    PART, PREFIX = "cluster", "cluster_"

    enabled: bool = cluster(
        False, YES_NO,
        "this server is a node of a cluster: `millstream serve --shards` starts nodes with it",
    )  # fmt: skip
    announce_ip: str = cluster(
        "", HOST,
        "address of this machine that clients are told; empty: the one to which they connected",
        apply=READ,
    )  # fmt: skip
    announce_hostname: str = cluster("", HOST, "the same for the name of this machine", apply=READ)
    announce_port: int = cluster(
        0, integer(0, 65535),
        "the same for the port; 0: the port on which the node listens. Not with "
        "`millstream serve --shards`, whose nodes have ports of their own",
        apply=READ,
    )  # fmt: skip
    announce_tls_port: int = cluster(
        0, integer(0, 65535), "the same for the port of TLS", apply=READ
    )
    preferred_endpoint_type: str = cluster(
        BY_IP, one_of(BY_IP, BY_HOSTNAME, UNKNOWN),
        "which of these clients are to use: `ip`; `hostname`; `unknown-endpoint`: the address to "
        "which they have connected, with the port of the node",
        apply=READ,
    )  # fmt: skip
    require_full_coverage: bool = cluster(
        False, YES_NO,
        "refuse requests for all slots while one has no node that runs; Redis' default is yes",
        apply=of_cluster_state,
    )  # fmt: skip
    allow_reads_when_down: bool = cluster(
        False, YES_NO,
        "run reads also while this node answers `CLUSTERDOWN The cluster is down`: what they show "
        "may be old, and may be lost later",
        apply=of_cluster_state,
    )  # fmt: skip
