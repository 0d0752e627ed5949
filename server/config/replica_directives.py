"""The directives of replicas."""

from __future__ import annotations

from functools import partial

from millstream.host_names import check_host
from millstream.server.config.apply import ONE_VALUE, READ, restrictions
from millstream.server.config.kinds import (
    INT32_MAX,
    INT64_MAX,
    MEGABYTE,
    REPLICAS,
    SECRET,
    TEXT,
    YES_NO,
    Kind,
    directive,
    integer,
    one_of,
    parse_integer,
    size,
)

# Those of storage/dump/file_writing, which checks a test; it is not loaded with the directives.
REDIS_VERSIONS = "6.2", "7.0", "7.2", "7.4", "8.0", "8.2", "8.4", "8.6", "8.8", "8.10"


def parse_address(text: str) -> tuple[str, int] | None:
    """The value of `replicaof`; None for an empty one. ValueError for anything else."""
    words = text.split()
    if not words or [word.lower() for word in words] == ["no", "one"]:
        return None
    host = words[0]
    try:
        port = parse_integer(words[1]) if len(words) == 2 else 0
    except ValueError:
        port = 0
    if not 0 < port < 65536:
        raise ValueError("argument must be a host and a port, for example db1 6455")
    check_host(host)
    return host, port


def _parse_primary(text: str, current: object) -> str:
    address = parse_address(text)
    return "" if address is None else f"{address[0]} {address[1]}"


def _parse_host(text: str, current: object) -> str:
    if text:
        check_host(text)
    return text


def _parse_yes(text: str, current: object) -> bool:
    if not YES_NO.parse(text, current):
        raise ValueError("a replica here is always read only: its frames are its primary's")
    return True


YES = Kind(_parse_yes, YES_NO.show, "yes")


HOST = Kind(_parse_host, str, "host")


PRIMARY = Kind(_parse_primary, str, "host and port", many=True)
replicas = partial(directive, section=REPLICAS)


class ReplicaDirectives:
    """Attributes of Config."""

    replicaof: str = replicas(
        "", PRIMARY,
        "host and port of the primary that this server follows; empty: none. REPLICAOF changes it",
    )  # fmt: skip
    import_memory_limit: int = replicas(
        4096 * MEGABYTE, size(64 * MEGABYTE, INT64_MAX),
        "memory of a process that converts data: of a Redis that this server follows, or for a"
        " program or a Redis that asks for all data", apply=READ,
    )  # fmt: skip
    masteruser: str = replicas("", TEXT, "user for the primary", apply=READ)
    masterauth: str = replicas("", SECRET, "password for the primary", apply=READ)
    replica_announce_ip: str = replicas(
        "", HOST,
        "address that the primary shows for this server; empty: the one that the primary sees",
        apply=READ,
    )  # fmt: skip
    replica_announce_port: int = replicas(
        0, integer(0, 65535),
        "the same for the port; 0: the port on which this server listens", apply=READ,
    )  # fmt: skip
    replica_announced: bool = replicas(
        True, YES_NO, "whether Sentinel shows this replica to its clients", apply=READ
    )
    replica_priority: int = replicas(
        100, integer(0, INT32_MAX),
        "Sentinel promotes the replica with the lowest number first, and never one with 0",
        apply=READ,
    )  # fmt: skip
    replica_serve_stale_data: bool = replicas(
        True, YES_NO,
        "whether a replica answers while its link to the primary is down", apply=restrictions,
    )  # fmt: skip
    replica_read_only: bool = replicas(
        True, YES, "a replica refuses writes: its frames are those of its primary", apply=ONE_VALUE
    )
    repl_timeout: int = replicas(
        60, integer(1, INT32_MAX),
        "seconds of silence, at either end, after which a link is dropped", apply=READ,
    )  # fmt: skip
    repl_backlog_size: int = replicas(
        MEGABYTE, size(16384),
        "memory for the last frames, from which a replica continues after a short interruption; "
        "older frames are read from the journal", apply=READ,
    )  # fmt: skip
    repl_backlog_ttl: int = replicas(
        3600, integer(0, INT64_MAX),
        "seconds without replicas after which a primary frees this memory; 0: never", apply=READ,
    )  # fmt: skip
    min_replicas_to_write: int = replicas(
        0, integer(0, INT32_MAX),
        "refuse writes while fewer replicas have acknowledged something within "
        "min-replicas-max-lag; 0: never refuse them", apply=restrictions,
    )  # fmt: skip
    min_replicas_max_lag: int = replicas(
        10, integer(0, INT32_MAX),
        "seconds since the last acknowledgement for which a replica counts for "
        "min-replicas-to-write", apply=restrictions,
    )  # fmt: skip
    shutdown_timeout: int = replicas(
        10, integer(0, INT32_MAX),
        "maximum seconds that SHUTDOWN and SIGTERM wait until all replicas have everything; 0: do "
        "not wait", apply=READ,
    )  # fmt: skip
    replica_redis_version: str = replicas(
        "7.0", one_of(*REDIS_VERSIONS),
        "version of Redis for which a program gets an RDB that does not tell its own (SYNC, PSYNC)",
        apply=READ,
    )  # fmt: skip
    replica_redis_spool_limit: int = replicas(
        4096 * MEGABYTE, size(MEGABYTE, INT64_MAX),
        "disk space for the changes during a full sync of a Redis that follows; above it, the link "
        "ends", apply=READ,
    )  # fmt: skip
    replicas_durable: int = replicas(
        0, integer(0, 15),
        "a reply that shows data waits until this number of replicas have it on disk, as it waits "
        "for the disk of this server; with fewer replicas, writes are refused", apply=restrictions,
    )  # fmt: skip

    def choose_primary(self, replicaof: str) -> None:
        """REPLICAOF has changed the primary ("": none): CONFIG REWRITE writes it."""
        self.replicaof = replicaof
