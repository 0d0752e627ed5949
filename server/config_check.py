"""What a start would refuse, found without starting: `millstream serve --check`."""

from __future__ import annotations

from pathlib import Path

from millstream.commands.access.users import Users
from millstream.commands.table.loader import load_table
from millstream.server.config.directives import Config
from millstream.server.config.doubts import doubts
from millstream.server.config.user_files import configured_users
from millstream.server.monitor import log
from millstream.server.net.sockets import check_ports
from millstream.server.net.tls import make_link_context, make_tls


def check_config(config: Config, file: Path | None) -> list[str]:
    """Check the log file, and read the users and the certificates that a configuration names;
    StartError names what is wrong. Return warnings. Data and ports are not touched, so a server may
    be running."""
    load_table()
    if config.logfile:
        log.check(config.located(config.logfile), config.dir)
    check_ports(config)
    configured_users(config, Users())
    make_link_context(config)
    expired = make_tls(config).warning() if config.tls_port else ""
    return doubts(config, file) + ([expired] if expired else [])
