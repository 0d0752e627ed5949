"""The directives of replicas."""

from __future__ import annotations

from millstream.host_names import check_host
from millstream.server.config.apply import ONE_VALUE, READ, restrictions
from millstream.server.config.kinds import (
    INT32_MAX,
    INT64_MAX,
    MEGABYTE,
    REPLICAS,
    TEXT,
    YES_NO,
    Kind,
    directive,
    integer,
    size,
)


def parse_address(text: str) -> tuple[str, int] | None:
    """The value of `replicaof`; None for an empty one. ValueError for anything else."""
    words = text.split()
    if not words or [word.lower() for word in words] == ["no", "one"]:
        return None
    if len(words) != 2 or not words[1].isdigit() or not 0 < int(words[1]) < 65536:
        raise ValueError("argument must be a host and a port, for example db1 6455")
    check_host(words[0])
    return words[0], int(words[1])


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


class ReplicaDirectives:
    """Attributes of Config."""

    replicaof: str = directive(
        "", PRIMARY, "host and port of the primary that this server follows; empty: none. "
        "REPLICAOF changes it", section=REPLICAS,
    )  # fmt: skip
    masteruser: str = directive("", TEXT, "user for the primary", section=REPLICAS, apply=READ)
    masterauth: str = directive("", TEXT, "password for the primary", section=REPLICAS, apply=READ)
    replica_announce_ip: str = directive(
        "", HOST, "address that the primary shows for this server; empty: the one that the "
        "primary sees", section=REPLICAS, apply=READ,
    )  # fmt: skip
    replica_announce_port: int = directive(
        0, integer(0, 65535), "the same for the port; 0: the port on which this server listens",
        section=REPLICAS, apply=READ,
    )  # fmt: skip
    replica_announced: bool = directive(
        True,
        YES_NO,
        "whether Sentinel shows this replica to its clients",
        section=REPLICAS,
        apply=READ,
    )
    replica_priority: int = directive(
        100, integer(0, INT32_MAX), "Sentinel promotes the replica with the lowest number first, "
        "and never one with 0", section=REPLICAS, apply=READ,
    )  # fmt: skip
    replica_serve_stale_data: bool = directive(
        True, YES_NO, "whether a replica answers while its link to the primary is down",
        section=REPLICAS, apply=restrictions,
    )  # fmt: skip
    replica_read_only: bool = directive(
        True, YES, "a replica refuses writes: its frames are those of its primary",
        section=REPLICAS, apply=ONE_VALUE,
    )  # fmt: skip
    repl_timeout: int = directive(
        60, integer(1, INT32_MAX), "seconds of silence, at either end, after which a "
        "link is dropped", section=REPLICAS, apply=READ,
    )  # fmt: skip
    repl_backlog_size: int = directive(
        MEGABYTE, size(16384), "memory for the last frames, from which a replica continues after "
        "a short interruption; older frames are read from the journal", section=REPLICAS,
        apply=READ,
    )  # fmt: skip
    repl_backlog_ttl: int = directive(
        3600, integer(0, INT64_MAX), "seconds without replicas after which a primary frees this "
        "memory; 0: never", section=REPLICAS, apply=READ,
    )  # fmt: skip
    min_replicas_to_write: int = directive(
        0, integer(0, INT32_MAX), "refuse writes while fewer replicas have acknowledged something "
        "within min-replicas-max-lag; 0: never refuse them", section=REPLICAS, apply=restrictions,
    )  # fmt: skip
    min_replicas_max_lag: int = directive(
        10, integer(0, INT32_MAX), "seconds since the last acknowledgement for which a replica "
        "counts for min-replicas-to-write", section=REPLICAS, apply=restrictions,
    )  # fmt: skip
    shutdown_timeout: int = directive(
        10, integer(0, INT32_MAX), "maximum seconds that SHUTDOWN and SIGTERM wait until all "
        "replicas have everything; 0: do not wait", section=REPLICAS, apply=READ,
    )  # fmt: skip
    replicas_durable: int = directive(
        0, integer(0, 15), "a reply that shows data waits until this number of replicas have it on "
        "disk, as it waits for the disk of this server; with fewer replicas, writes are "
        "refused", section=REPLICAS, apply=restrictions,
    )  # fmt: skip

    def choose_primary(self, replicaof: str) -> None:
        """REPLICAOF has changed the primary ("": none): CONFIG REWRITE writes it."""
        self.replicaof = replicaof
