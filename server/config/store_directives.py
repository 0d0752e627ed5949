"""The directives of a node whose cluster has its map in etcd."""

from __future__ import annotations

import re
from functools import partial

from millstream.server.config.kinds import TEXT, Kind, directive, integer, parse_integer

cluster = partial(directive, section="Cluster")
AUTO = "auto"
CLUSTER_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
SHARD_NAME = re.compile("[a-z0-9]{1,32}")
ZONE = re.compile("[!-~]{1,64}")
UNITS_MS = {"ms": 1, "s": 1000}


def duration(unit: str, low: int, high: int) -> Kind:
    """A time in a unit of UNITS_MS, or with one: `3s`, `1000ms`."""
    natural = integer(low, high)

    def parse(text: str, current: object) -> int:
        found = re.fullmatch("([0-9]{1,18})(ms|s)", text.lower())
        if found is None:
            value: int = natural.parse(text, current)
            return value
        time_ms, unit_ms = parse_integer(found[1]) * UNITS_MS[found[2]], UNITS_MS[unit]
        if time_ms % unit_ms:
            raise ValueError(f"argument must be a whole number of {unit}")
        return int(natural.parse(str(time_ms // unit_ms), current))

    return Kind(parse, str, f"time in {unit}, {low} to {high}")


class GatewayDirectives:
    """`Config.gateway`."""

    PART, PREFIX = "gateway", "gateway_"

    retry: int = cluster(
        10, duration("s", 0, 600),
        "how long `millstream gateway` sends a request again that nodes refuse while slots or "
        "primaries change, in seconds",
    )  # fmt: skip


def _matching(form: re.Pattern[str], name: str, description: str) -> Kind:
    def parse(text: str, current: object) -> str:
        if text and not form.fullmatch(text):
            raise ValueError(f"argument must be {description}")
        return text

    return Kind(parse, str, name)


NAME = _matching(
    CLUSTER_NAME, "name", "1 to 64 letters, digits, -, _ and dots, the first one a letter or digit"
)
SHARD = _matching(
    SHARD_NAME, "name of a shard, or auto", "the name of a shard, such as s1, or auto"
)
ZONE_NAME = _matching(ZONE, "name", "1 to 64 visible ASCII characters")


class StoreDirectives:
    """A part of ClusterDirectives."""

    PART, PREFIX = "cluster", "cluster_"

    name: str = cluster(
        "", NAME,
        "name of the cluster in etcd, of which this server is a node: `millstream cluster init` "
        "creates it",
    )  # fmt: skip
    etcd: str = cluster("", TEXT, "URLs of etcd, with commas between them")
    etcd_user: str = cluster("", TEXT, "user of etcd; empty: none")
    etcd_password_file: str = cluster("", TEXT, "file with the password of this user")
    etcd_cacert: str = cluster(
        "", TEXT,
        "authorities of etcd's certificates, in PEM; empty: those of the system",
    )  # fmt: skip
    etcd_cert: str = cluster(
        "", TEXT,
        "certificate of this client of etcd, in PEM, for an etcd with `--client-cert-auth`; empty: "
        "none",
    )  # fmt: skip
    etcd_key: str = cluster("", TEXT, "key of this certificate, in PEM, without a password")
    secret_file: str = cluster(
        "", TEXT,
        "file with the secret with which the nodes of this cluster log in at each other: one line "
        "of 16 to 512 characters, in a file that only its owner can read; empty: a secret in etcd, "
        "which the first node writes. SIGHUP reads the file again",
    )  # fmt: skip
    shard: str = cluster(
        AUTO, SHARD,
        "the shard of which this server becomes a member if it has no other; auto: the one with "
        "the fewest members",
    )  # fmt: skip
    zone: str = cluster(
        "", ZONE_NAME,
        "where the machine of this node is, for example its availability zone: a new primary is in "
        "the zone of the old one, if a member there has as much data as the others",
    )  # fmt: skip
    lease: int = cluster(
        10, duration("s", 2, 3600),
        "how long this node is regarded as running after it was last heard by etcd, in seconds",
    )  # fmt: skip
    node_timeout: int = cluster(
        5000, duration("ms", 500, 600_000),
        "how long the primary of a shard is silent before its members elect another one, in "
        "milliseconds",
    )  # fmt: skip
    handover_timeout: int = cluster(
        2, duration("s", 1, 60),
        "how long requests wait for slots that are being handed over to another shard, in seconds; "
        "then they get TRYAGAIN",
    )  # fmt: skip
    move_timeout: int = cluster(
        3600, duration("s", 1, 30 * 24 * 3600),
        "how long a move of slots to this shard may copy them, in seconds; then it fails",
    )  # fmt: skip
