"""Listening sockets, bound before the data is loaded.

A port in use is therefore reported immediately and not after minutes of loading. The sockets begin
to listen when the data directory is locked; until then connections are refused.
"""

from __future__ import annotations

import errno
import socket
import stat
from collections.abc import Sequence
from pathlib import Path

from millstream.errors import StartError
from millstream.listening import ABSENT, bound_socket, looked_up, why_not
from millstream.server.config.directives import Config

EVERYWHERE = ("0.0.0.0", "::")
ALL_OF_IPV6 = "::*"  # as Redis writes it


def bind_sockets(
    addresses: Sequence[str], port: int, directive: str = "port", *, is_shared: bool = False
) -> list[socket.socket]:
    """A bound socket for each address; port 0: a free one, the same for all. Other processes may
    have the same port if all of them share it.

    ``*`` is every IPv4 and IPv6 address, ``::*`` every IPv6 address; one that begins with ``-`` may
    be absent on this machine. Raises StartError.
    """
    sockets: list[socket.socket] = []
    try:
        for address, optional in _expanded(addresses):
            try:
                found = _bind(address, port, is_shared)
            except (OSError, UnicodeError) as problem:  # the latter: not a name to look up
                if optional and isinstance(problem, OSError) and problem.errno in ABSENT:
                    continue
                where = f"port {port} on {address}" if port else address  # 0: any port
                raise StartError(why_not(problem, where, directive)) from None
            sockets.append(found)
            port = port or found.getsockname()[1]
        if not sockets:
            raise StartError(f"none of the addresses {' '.join(addresses)} is on this machine")
    except StartError:
        for opened in sockets:
            opened.close()
        raise
    return sockets


def name_of_socket(bound: socket.socket) -> str:
    """The address and port, or the path, of a bound socket."""
    if bound.family == socket.AF_UNIX:
        return str(bound.getsockname())
    address, port = bound.getsockname()[:2]
    return f"[{address}]:{port}" if bound.family == socket.AF_INET6 else f"{address}:{port}"


def bind_unix(path: Path, permissions: int) -> socket.socket:
    """A bound Unix socket. One that an ended process left is replaced. StartError otherwise."""
    bound = socket.socket(socket.AF_UNIX)
    try:
        _remove_stale(path)
        bound.bind(str(path))
        if permissions:
            path.chmod(permissions)
        bound.setblocking(False)
    except OSError as problem:
        bound.close()
        reason = problem.strerror or str(problem)
        raise StartError(f"unixsocket: cannot listen on {path}: {reason}") from None
    return bound


def _remove_stale(path: Path) -> None:
    """Remove a socket that no process listens on; OSError when one does, or it is another file."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "the file exists and is not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(errno.EADDRINUSE, "another program is listening there")


def start_listening(bound: socket.socket, backlog: int, directive: str) -> None:
    """Listen, before the event loop does: uvloop would lose the error of a bound socket that cannot
    listen because another program was faster. StartError then."""
    try:
        bound.listen(backlog)
    except OSError as problem:
        name = bound.getsockname()
        where = f"port {name[1]} on {name[0]}" if isinstance(name, tuple) else str(name)
        raise StartError(why_not(problem, where, directive)) from None


def check_ports(config: Config) -> None:
    """StartError when two directives name the same port of an address, or one needs another
    port."""
    shared = set(config.bind) & set(config.metrics.bind)
    numbers = {
        "port": config.port,
        "tls-port": config.tls.port,
        "metrics-port": config.metrics.port,
    }
    pairs = [("port", "tls-port", True)]
    pairs += [(name, "metrics-port", bool(shared)) for name in ("port", "tls-port")]
    for one, other, meet in pairs:
        number = numbers[one]
        if meet and number and number == numbers[other]:
            raise StartError(f"{one} and {other} are both {number}; each needs a port of its own")
    if config.metrics.port and config.metrics.tls and not config.tls.port:
        raise StartError("metrics-tls uses the certificate of tls-port, which is not set")


def _expanded(addresses: Sequence[str]) -> list[tuple[str, bool]]:
    """(address, may be absent) for each, once; every address may be a machine's only one."""
    expanded: dict[str, bool] = {}
    for word in addresses:
        address, optional = word.removeprefix("-"), word.startswith("-")
        if address == "*":
            for everywhere in EVERYWHERE:
                expanded.setdefault(everywhere, True)
        elif address == ALL_OF_IPV6:
            expanded.setdefault(EVERYWHERE[1], optional)
        else:
            expanded.setdefault(address, optional)
    return list(expanded.items())


def _bind(address: str, port: int, is_shared: bool) -> socket.socket:
    family, kind, protocol, _, where = looked_up(address, port)[0]
    bound = bound_socket(family, kind, protocol, where, is_shared=is_shared)
    bound.setblocking(False)
    return bound
