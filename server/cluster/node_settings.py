"""The nodes of one machine: their directories, ports and directives.

`millstream serve --shards N` gives each node the directives of the configuration file and of the
command line, and then its own: directory and ports. Each node divides maxmemory itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from millstream.errors import StartError
from millstream.server.cluster.slot_map import SlotMap, new_map, read_map, refuse_backup, write_map
from millstream.server.config.cluster_directives import MAP_NAME
from millstream.server.config.directives import Config
from millstream.storage.files.manifest import NAME as MANIFEST
from millstream.storage.files.manifest import is_ours

PORT_MAX = 65535


def check_ports(config: Config, count: int, gateways: int = 1) -> None:
    """StartError if the nodes cannot have the ports after those of the configuration, or the
    gateways after the first one the ports of metrics after those of the nodes."""
    numbers = {
        "port": config.port,
        "tls-port": config.tls.port,
        "metrics-port": config.metrics.port,
    }
    if not config.port and not config.tls.port:
        raise StartError("--shards needs a port: the nodes listen on the ports after it")
    more = max(0, gateways - 1)
    used = {
        name: range(number, number + count + 1 + (more if name == "metrics-port" else 0))
        for name, number in numbers.items()
        if number
    }
    for name, ports in used.items():
        if ports[-1] > PORT_MAX:
            after = len(ports) - 1
            users = "1 node" if count == 1 else f"{count} nodes"
            others = "the next port is" if after == 1 else f"the next {after} ports are"
            raise StartError(
                f"{name} {ports[0]} is too high for {users}: {others} needed, "
                f"so {PORT_MAX - after} is the highest one"
            )
    names = list(used)
    for at, one in enumerate(names):
        for other in names[at + 1 :]:
            if used[one][0] <= used[other][-1] and used[other][0] <= used[one][-1]:
                raise StartError(
                    f"{one} {used[one][0]} and {other} {used[other][0]} are too close: the nodes "
                    f"listen on the ports after each of them"
                )


def check_directives(config: Config) -> None:
    """StartError if a directive cannot be that of several nodes."""
    cluster = config.cluster
    for name, value in (
        ("cluster-announce-port", cluster.announce_port),
        ("cluster-announce-tls-port", cluster.announce_tls_port),
    ):
        if value:
            raise StartError(
                f"{name} cannot be given with --shards, because each node has a port of its own: "
                "remove it"
            )
    if config.replicaof:
        raise StartError("replicaof cannot be given with --shards: the nodes are primaries")
    if cluster.name or cluster.etcd:
        raise StartError(
            "cluster-name and cluster-etcd cannot be given with --shards: all nodes are on this "
            "machine. Start a node of a cluster in etcd without --shards"
        )


def find_map(folder: Path, count: int) -> SlotMap | None:
    """The map of a directory of nodes; None for an empty directory. StartError if the directory has
    something else."""
    found = read_map(folder)
    if found is None:
        refuse_server(folder, count)
    elif len(found.shards) != count:
        raise StartError(
            f"{folder} is a directory of {len(found.shards)} nodes: start it with --shards "
            f"{len(found.shards)}, or copy it with `millstream cluster split {folder} OUT "
            f"--shards {count}`"
        )
    return found


def make_map(folder: Path, count: int) -> None:
    """Write a new map, unless the directory, which is locked now, has one. StartError as above."""
    if find_map(folder, count) is None:
        try:
            write_map(folder, new_map(count))
        except OSError as problem:
            raise StartError(f"cannot write {folder / MAP_NAME}: {problem.strerror}") from None


def refuse_server(folder: Path, count: int) -> None:
    """StartError if the directory has the data of a single server."""
    refuse_backup(folder)
    names = [path.name for path in folder.iterdir()]
    if MANIFEST in names or any(map(is_ours, names)):
        raise StartError(
            f"{folder} has the data of a single server: copy it with `millstream cluster split "
            f"{folder} OUT --shards {count}`, and start the copy"
        )
    numbered = [name for name in names if name.isdigit() and (folder / name / MANIFEST).exists()]
    if numbered:
        raise StartError(
            f"{folder} has directories of nodes ({min(numbered)}), but no {MAP_NAME}, which "
            "says which slots each of them owns: restore that file from a copy, or make a new "
            "directory from a backup with `millstream cluster restore BACKUP OUT`"
        )


def directives_of(config: Config, number: int, aclfile: Path) -> Sequence[str]:
    """The directives that node `number`, from 1, has in place of those of the configuration."""
    own = {
        "dir": str(config.dir.resolve() / f"{number:04}"),
        "cluster-enabled": "yes",
        "aclfile": str(aclfile),
        "pidfile": "",
        "supervised": "no",
        "port": str(config.port + number if config.port else 0),
    }
    if config.tls.port:
        own["tls-port"] = str(config.tls.port + number)
    if config.metrics.port:
        own["metrics-port"] = str(config.metrics.port + number)
    if config.unix.socket:
        own["unixsocket"] = f"{config.unix.socket}.{number}"
    return _words(own)


def gateway_directives(config: Config, count: int, number: int = 1) -> Sequence[str]:
    """The directives of gateway `number`, from 1, of `count` nodes in place of those of the
    configuration. Gateways share the ports; each has metrics of its own."""
    own = {"dir": str(config.dir.resolve()), "pidfile": "", "supervised": "no", "aclfile": ""}
    if number > 1:
        own["unixsocket"] = ""
        if config.metrics.port:
            own["metrics-port"] = str(config.metrics.port + count + number - 1)
    return _words(own)


def _words(directives: Mapping[str, str]) -> Sequence[str]:
    return [word for name, value in directives.items() for word in (f"--{name}", value)]
