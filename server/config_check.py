"""Checks a configuration without starting: errors, which would prevent a start, and warnings, which
a start logs. `millstream serve --check`."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from millstream.commands.access.users import Users
from millstream.commands.table.loader import load_table
from millstream.errors import StartError
from millstream.memory_reserve import never_overcommits, own_limit
from millstream.server.config.directives import DIRECTIVES, Config
from millstream.server.config.exposed_secrets import exposure_warnings
from millstream.server.config.ignored_directives import INSTEAD
from millstream.server.config.member_rules import check_member
from millstream.server.config.user_files import configured_users
from millstream.server.monitor import log
from millstream.server.net.sockets import bind_sockets, check_ports


def check_config(config: Config, file: Path | None) -> list[str]:
    """Check the log file, and read the users and the certificates that a configuration names;
    StartError names what is wrong. Return warnings. Data and ports are not touched, so a server may
    be running."""
    from millstream.server.net.certificate_dates import expiry_dates, expiry_warnings
    from millstream.server.net.tls_contexts import make_link_context, make_tls

    load_table()
    if config.logfile:
        log.check(config.located(config.logfile), config.dir)
    check_ports(config)
    check_member(config)
    if config.cluster.name:
        from millstream.server.cluster.store.store_opening import configured_store

        configured_store(config)
    configured_users(config, Users())
    make_link_context(config)
    if config.cluster.secret_file:
        from millstream.server.config.secret_file import read_secret

        read_secret(config)
    expired = make_tls(config).warning() if config.tls.port else ""
    found = [expired] if expired else []
    return warnings(config, file) + found + expiry_warnings(expiry_dates(config))


NOT_CHECKED = (
    "not checked: whether the ports are free, the data files, and the permissions of another user"
)


def check_machine(config: Config) -> list[str]:
    """Check what a start needs on this machine: addresses and folders. StartError names what is
    missing. Return warnings. Nothing is left on the disk, and a server may be running."""
    if config.port or not (config.tls.port or config.unix.socket):
        _check_addresses("bind", config.bind)
    if config.metrics.port:
        _check_addresses("metrics-bind", config.metrics.bind)
    _check_folder(config.dir)
    unix_socket, pidfile = (
        Path(config.located(name)).absolute() for name in (config.unix.socket, config.pidfile)
    )
    made = None if config.dir.exists() else config.dir.absolute()  # by the start
    if config.unix.socket and unix_socket.parent != made and not unix_socket.parent.is_dir():
        raise StartError(f"unixsocket: the folder of {unix_socket} does not exist")
    if config.pidfile and pidfile.parent != made and not os.access(pidfile.parent, os.W_OK):
        return [f"the pidfile {pidfile} cannot be written; a server starts without it"]
    return []


def _check_addresses(directive: str, addresses: Sequence[str]) -> None:
    """Bind any free port."""
    try:
        for bound in bind_sockets(addresses, 0, directive):
            bound.close()
    except StartError as problem:
        raise StartError(f"{directive}: {problem}") from None


def _check_folder(path: Path) -> None:
    """Check that the data directory can be used or made, by a folder that is removed at once."""
    import tempfile

    found = path.absolute()
    while not found.exists() and found != found.parent:
        found = found.parent
    try:
        if not found.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        os.rmdir(tempfile.mkdtemp(prefix=".millstream-check-", dir=found))
    except OSError as problem:
        raise StartError(f"dir: {path} cannot be used: {found}: {problem.strerror}") from None


def warnings(config: Config, file: Path | None) -> list[str]:
    """One sentence for each valid value that may not do what its author expects."""
    found = []
    if config.replicas_durable and not config.appendonly:
        found.append(
            "replicas-durable needs appendonly yes: a server without a journal has no replicas, so"
            " it refuses writes"
        )
    if (config.replicas_durable or config.replicaof) and not _is_replaceable(file):
        found.append(
            f"{_what(file)}: after a failover, Sentinel cannot record the role of this server, and"
            " a restart returns to the earlier role"
        )
    found += exposure_warnings(config)
    found += _memory_warnings(config)
    found += warnings_of_ignored(config, DIRECTIVES)
    return found


def warnings_of_ignored(config: Config, names: Collection[str]) -> list[str]:
    """One sentence for each of these directives that has no effect, although its value asks for
    one."""
    default = Config()
    found = [
        f"{name} {config.shown(name)} has no effect: {INSTEAD[name]}"
        for name in names
        if name in INSTEAD and config.shown(name) != default.shown(name)
    ]
    share = config.maxmemory_clients
    has_share = share.endswith("%") and int(share[:-1]) > 0
    if has_share and not config.maxmemory and {"maxmemory", "maxmemory-clients"} & set(names):
        found.append(f"maxmemory-clients {share} has no effect: maxmemory is 0")
    waits = config.appendonly and config.appendfsync == "always"
    is_set = config.appendfsync_groups != default.appendfsync_groups
    if is_set and not waits and {"appendonly", "appendfsync", "appendfsync-groups"} & set(names):
        mode = config.appendfsync
        setting = f"appendfsync is {mode}" if config.appendonly else "appendonly is no"
        found.append(f"appendfsync-groups {config.appendfsync_groups} has no effect: {setting}")
    return found


def _memory_warnings(config: Config) -> list[str]:
    """Limits under which an allocation fails while the server still accepts data."""
    limit = own_limit()
    if limit is not None and not 0 < config.maxmemory < limit[1]:
        setting, limit_bytes = limit
        return [
            f"the operating system allows this process {limit_bytes} bytes ({setting}) and"
            f" maxmemory is {config.maxmemory}: set maxmemory well below this limit, or commands"
            " and snapshots fail when it is reached"
        ]
    if not config.maxmemory and never_overcommits():
        return [
            "vm.overcommit_memory is 2 and maxmemory is 0: set maxmemory, or commands and snapshots"
            " fail when the system has no more memory to promise"
        ]
    return []


def _is_replaceable(file: Path | None) -> bool:
    """True if CONFIG REWRITE can write the file: it makes a new one next to it."""
    return file is not None and os.access(file.absolute().parent, os.W_OK)


def _what(file: Path | None) -> str:
    return "there is no configuration file" if file is None else f"{file} cannot be replaced"
