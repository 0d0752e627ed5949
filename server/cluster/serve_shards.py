"""`millstream serve --shards N`: the nodes of one machine, their gateways and the supervisor."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from millstream.errors import DataError, StartError
from millstream.server.cluster.node_settings import (
    check_directives,
    check_ports,
    directives_of,
    find_map,
    gateway_directives,
    make_map,
)
from millstream.server.cluster.shared_users import open_users, users_path
from millstream.server.cluster.supervisor import Supervisor
from millstream.server.config.loading import load
from millstream.server.config_check import NOT_CHECKED, check_config, check_machine
from millstream.server.durability.data_files import prepare_directory
from millstream.server.monitor import log
from millstream.storage.files.disk import SystemDisk

SERVER = [sys.executable, "-P", "-m", "millstream.server.main"]
GATEWAY = [sys.executable, "-P", "-m", "millstream.server.gateway.gateway_process"]


def run_shards(
    file: Path | None,
    arguments: Sequence[str],
    count: int,
    gateways: int = 1,
    *,
    only_check: bool = False,
) -> int:
    """Serve until a stop is requested, or only check the configuration; return the exit code."""
    try:
        config = load(file, arguments)
        check_ports(config, count, gateways)
        check_directives(config)
        if only_check:
            users_file = users_path(config)
            own = [*directives_of(config, 1, users_file)]
            if not config.aclfile and not users_file.exists():
                own += ["--aclfile", ""]  # a start makes the file
            node = load(file, [*arguments, *own])
            for warning in check_config(node, file) + check_machine(node):
                print(f"millstream: warning: {warning}", file=sys.stderr)
            print(f"millstream: the configuration is valid\nmillstream: {NOT_CHECKED}")
            return 0
        prepare_directory(config.dir)
        os.environ[log.PROCESS_VARIABLE] = "supervisor"
        log.configure(config.loglevel, config.located(config.logfile), config.log_format)
        find_map(config.dir, count)  # an error does not leave the lock's file in the directory
        disk = SystemDisk(config.dir)
        disk.lock()
        try:
            make_map(config.dir, count)
            users = open_users(config)
            words = [] if file is None else [str(file)]
            commands = [
                [*SERVER, *words, *arguments, *directives_of(config, number, users.path)]
                for number in range(1, count + 1)
            ]
            numbers = range(1, gateways + 1) if config.port else ()  # nodes are reached without TLS
            sharing = ["--shared"] if gateways > 1 else []
            passing = [
                [*GATEWAY, *sharing, *words, *arguments, *gateway_directives(config, count, number)]
                for number in numbers
            ]
            return asyncio.run(Supervisor.serve(config, commands, users, passing))
        finally:
            disk.unlock()
    except (StartError, DataError) as problem:
        print(f"millstream: {problem}", file=sys.stderr)
        return 1
    except OSError as problem:
        print(f"millstream: {problem.strerror or problem}", file=sys.stderr)
        return 1
