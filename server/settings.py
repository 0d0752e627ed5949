"""CONFIG SET and CONFIG REWRITE: the directives of a running server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from millstream.errors import CommandError, StartError
from millstream.server.config.apply import Apply
from millstream.server.config.directives import DIRECTIVES, Config, changed_values, refused
from millstream.server.config.member_rules import check_member
from millstream.server.config_check import warnings_of_ignored
from millstream.server.monitor.log import LOGGER
from millstream.server.net.listeners import Listeners
from millstream.server.process import allowed_clients

SHARED_FILE = (
    "ERR the configuration file is that of all nodes: change it by hand, and send SIGHUP to the "
    "process of `millstream serve`"
)


class Settings:
    """Changes directives while the server runs. `file` is the configuration file, if any;
    `user_lines` returns the users for it. `apply` calls a directive's function."""

    def __init__(
        self,
        config: Config,
        file: Path | None,
        listeners: Listeners,
        user_lines: Callable[[], Sequence[Sequence[bytes]]],
        apply: Callable[[Apply, Any], object],
    ) -> None:
        self._config = config
        self._file = file
        self._listeners = listeners
        self._user_lines = user_lines
        self._apply = apply

    def apply_all(self) -> None:
        """At the start: the values of the file and the command line."""
        self._put_in_force(DIRECTIVES)

    def _put_in_force(self, names: Iterable[str]) -> None:
        """Apply these directives. A function that several of them have is called once."""
        wanted = set(names)
        rows = [row for row in DIRECTIVES.values() if row.name in wanted]
        for apply, row in {row.apply: row for row in rows if row.apply is not None}.items():
            self._apply(apply, row.value_in(self._config))

    def set(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """CONFIG SET: all of these directives or none. CommandError when one is refused."""
        self.change(changed_values(self._config, pairs))

    def change(self, values: dict[str, Any]) -> None:
        """Put all of these values in force, by name, or none; CommandError when one is refused."""
        most = allowed_clients(values.get("maxclients", 0))
        if most < values.get("maxclients", 0):
            raise refused(
                "maxclients",
                "The operating system is not able to handle the specified number of clients, "
                f"try with {most}",
            )
        before = {name: DIRECTIVES[name].value_in(self._config) for name in values}
        tls, dates = self._listeners.wanted_tls, self._listeners.files_expire_s
        try:
            self._assign(values)
            check_member(self._config)
            self._put_in_force(values)
        except (OSError, CommandError, StartError) as problem:
            self._assign(before)
            # The files of the earlier certificate may have changed: they are not read again.
            self._listeners.use(tls)
            self._listeners.files_expire_s = dates
            self._put_in_force(name for name in before if not name.startswith("tls-"))
            raise CommandError(f"ERR CONFIG SET failed - {problem}") from None
        for warning in warnings_of_ignored(self._config, values):
            LOGGER.warning("config   %s", warning)

    def _assign(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            DIRECTIVES[name].set_in(self._config, value)

    def rewrite(self) -> None:
        """CONFIG REWRITE."""
        if self._file is None:
            raise CommandError("ERR The server is running without a config file")
        cluster = self._config.cluster
        if cluster.enabled and not cluster.name:
            raise CommandError(SHARED_FILE)
        from millstream.server.config.config_rewrite import rewrite_file  # rarely needed

        try:
            # A node of a cluster in etcd has its users from there, and refuses lines `user`.
            users = () if cluster.name else self._user_lines()
            rewrite_file(self._file, self._config, users)
        except (OSError, ValueError) as problem:
            words = getattr(problem, "strerror", None) or problem
            LOGGER.error(
                "the configuration file %s cannot be replaced: %s. A restart uses it as it is",
                self._file, words,
            )  # fmt: skip
            raise CommandError(f"ERR Rewriting config file: {words}") from None
        LOGGER.info("the configuration is written to %s", self._file)
