"""How many clients the process may have, given the system's limit of open files."""

from __future__ import annotations

import resource

from millstream.errors import StartError
from millstream.server.config.directives import Config
from millstream.server.monitor.log import LOGGER

SPARE_FILES = 32  # descriptors in addition to the clients': journals, snapshots, log


def fit_maxclients(config: Config) -> None:
    """Lower maxclients to fit the limit of open files, as Redis does.

    StartError if not even one client fits.
    """
    most = allowed_clients(config.maxclients)
    if most < 1:
        raise StartError(
            f"only {most + SPARE_FILES} files may be open, {SPARE_FILES + 1} are needed;"
            " raise the limit (ulimit -n)"
        )
    if most < config.maxclients:
        LOGGER.warning(
            "only %d files may be open: maxclients is lowered from %d to %d;"
            " raise the limit (ulimit -n) for more",
            most + SPARE_FILES,
            config.maxclients,
            most,
        )
        config.maxclients = most


def allowed_clients(wanted: int) -> int:
    """The number of clients, at most `wanted`, that the limit of open files allows.

    The soft limit is raised as needed, up to the hard limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    files = wanted + SPARE_FILES
    if soft == unlimited or soft >= files:
        return wanted
    allowed = files if hard == unlimited else min(files, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError):  # the kernel's own limit (fs.nr_open)
        allowed = soft
    return allowed - SPARE_FILES
