"""SIGHUP: the log file is opened again, the configuration file and the certificates are read again.

Of the configuration file, those directives are applied whose value there is not the one that was
read last: so a value that CONFIG SET has given since stays unless its line changes, and a log
rotation does not undo it. All changes are applied, or none. Directives on the command line take
precedence, as at start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from millstream.errors import CommandError, StartError
from millstream.server.config.directives import DIRECTIVES, Config
from millstream.server.config.exposed_secrets import exposure_warnings
from millstream.server.config.kinds import SECRET
from millstream.server.config.lines import check_whole
from millstream.server.config.loading import load
from millstream.server.config_check import check_config
from millstream.server.monitor import log
from millstream.server.monitor.info import Process
from millstream.server.monitor.log import LOGGER
from millstream.server.net.listeners import Listeners
from millstream.server.settings import Settings

SHOWN_MAX = 200  # characters of a value in the log


class SettingsFile:
    """The configuration file of a running server, if it has one; `arguments` are the directives of
    its command line."""

    def __init__(
        self,
        config: Config,
        arguments: Sequence[str],
        settings: Settings,
        listeners: Listeners,
        process: Process,
        is_loading: Callable[[], bool],
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._file = process.config_file
        self._arguments = arguments
        self._settings = settings
        self._listeners = listeners
        self._process = process
        self._is_loading = is_loading
        self._now_ms = now_ms
        # True if a server that starts with a configuration has other users than now.
        self.users_differ: Callable[[Config], bool] = lambda wanted: True
        self.log_reopened: Callable[[], object] = lambda: None
        self.renew_secret: Callable[[], object] = lambda: None
        self._last_read = {name: row.value_in(config) for name, row in DIRECTIVES.items()}
        self._sources = config.sources

    def reload(self) -> None:
        """SIGHUP. What cannot be used is left as it was, and logged."""
        is_good = True
        for step in (
            self._reopen_log,
            self._read_settings,
            self._renew_certificates,
            self._renew_secret,
        ):
            try:
                step()
            except StartError as problem:
                LOGGER.error("SIGHUP: %s", problem)
                is_good = False
        self._process.note_reload(is_good, self._now_ms())

    def _reopen_log(self) -> None:
        config = self._config
        try:
            log.configure(config.loglevel, config.located(config.logfile), config.log_format)
        except StartError as problem:
            raise StartError(f"{problem}; the log continues where it was") from None
        self.log_reopened()
        if config.logfile:
            LOGGER.info("SIGHUP: the log file was reopened")

    def _renew_certificates(self) -> None:
        try:
            is_renewed = self._listeners.renew()
        except StartError as problem:
            raise StartError(f"{problem}; the earlier certificates stay in use") from None
        if is_renewed:
            LOGGER.info("SIGHUP: the certificates were reread")

    def _renew_secret(self) -> None:
        """That of the cluster."""
        try:
            self.renew_secret()
        except StartError as problem:
            raise StartError(f"{problem}; the earlier secret stays in use") from None

    # The configuration file

    def _read_settings(self) -> None:
        if self._file is None:
            LOGGER.info("SIGHUP: there is no configuration file")
            return
        if self._is_loading():
            raise StartError(f"{self._file} was not read, because the data is being loaded")
        try:
            wanted = load(self._file, self._arguments)
            check_whole(wanted.sources, self._sources)
            check_config(wanted, self._file)
            self._take(wanted)
            self._warn_of_secrets(wanted)
        except StartError as problem:
            raise StartError(f"{problem}; no setting was changed") from None
        except CommandError as refusal:
            reason = refusal.message.removeprefix("ERR CONFIG SET failed ").strip("- ")
            raise StartError(f"{self._file}: {reason}; no setting was changed") from None
        self._sources = wanted.sources

    def _warn_of_secrets(self, wanted: Config) -> None:
        """Warn again about files with secrets that others can read, as at start."""
        self._config.files_with_passwords = wanted.files_with_passwords
        for warning in exposure_warnings(self._config):
            LOGGER.warning("SIGHUP: %s", warning)

    def _take(self, wanted: Config) -> None:
        """Apply what can be applied; CommandError if nothing was."""
        values: dict[str, Any] = {}
        restart: dict[str, Any] = {}
        read = {name: row.value_in(wanted) for name, row in DIRECTIVES.items()}
        for name, value in read.items():
            row = DIRECTIVES[name]
            if value != self._last_read[name] and value != row.value_in(self._config):
                (values if row.mutable else restart)[name] = value
        changes = self._changes(values)
        if values:
            self._settings.change(values)
            LOGGER.warning("SIGHUP: settings were changed: %s", changes)
        else:
            LOGGER.info("SIGHUP: %s changes no setting", self._file)
        self._last_read = {**read, **{name: self._last_read[name] for name in restart}}
        names = self._changes(restart)
        if _users_of(wanted) != _users_of(self._config) and self.users_differ(wanted):
            names += f"{', ' if names else ''}lines `user` (or ACL SETUSER)"
        if names:
            LOGGER.warning("SIGHUP: these settings need a restart: %s", names)

    def _changes(self, values: dict[str, Any]) -> str:
        """Old and new values for the log, without secrets."""
        found = []
        for name, value in values.items():
            before, after = self._config.shown(name), DIRECTIVES[name].kind.show(value)
            change = f" {_short(before)} -> {_short(after)}"
            found.append(name + ("" if DIRECTIVES[name].kind is SECRET else change))
        return ", ".join(found)


def _short(text: str) -> str:
    return f"{text[:SHOWN_MAX]}..." if len(text) > SHOWN_MAX else text or '""'


def _users_of(config: Config) -> list[tuple[str, list[str]]]:
    return [(line.name, line.words) for line in config.user_lines]
