"""The store of a server's users: lines of the configuration file, or the aclfile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from millstream.commands.access.users import Users
from millstream.errors import CommandError
from millstream.server.config.directives import Config
from millstream.server.config.user_files import (
    configured_users,
    read_users,
    user_words,
    with_default,
    write_users,
)
from millstream.server.execution.access import Access
from millstream.server.monitor.log import LOGGER

NO_FILE = (
    "ERR This Redis instance is not configured to use an ACL file. You may want to specify users "
    "via the ACL SETUSER command and then issue a CONFIG REWRITE (assuming you have a Redis "
    "configuration file set) in order to store users in the Redis configuration."
)
NOT_SAVED = (
    "ERR There was an error trying to save the ACLs. Please check the server logs for more "
    "information"
)


class UserStore:
    """Reads the users of `config` into `access`, and writes them."""

    def __init__(self, config: Config, access: Access) -> None:
        self.when_loaded: Callable[[], object] = lambda: None  # by ACL LOAD
        self._config = config
        self._access = access

    def load_first(self) -> None:
        """The users of the configuration file or of the aclfile; StartError when one is wrong."""
        users = configured_users(self._config, self._access.users)
        if users:
            self._access.replace(with_default(users, self._config.requirepass))

    def differ_from(self, wanted: Config) -> bool:
        """True if a server that starts with this configuration has other users."""
        started = Users()
        started.set_default_password(wanted.requirepass.encode("utf-8", "surrogateescape"))
        users = configured_users(wanted, started)
        if users:
            started.replace(with_default(users, wanted.requirepass))
        return _lines_of(started) != _lines_of(self._access.users)

    def _path(self) -> Path:
        if not self._config.aclfile:
            raise CommandError(NO_FILE)
        return Path(self._config.located(self._config.aclfile))

    def load(self) -> None:
        """ACL LOAD; a CommandError changes nothing."""
        self.read_again()
        self.when_loaded()

    def read_again(self, *, keeps_clients: bool = False) -> None:
        """Read the aclfile; a CommandError changes nothing. `keeps_clients`: those of users whose
        rules have changed stay connected."""
        users = with_default(read_users(self._path(), self._access.users), self._config.requirepass)
        if keeps_clients:
            self._access.update(users)
        else:
            self._access.replace(users)

    def save(self) -> None:
        """ACL SAVE."""
        path = self._path()
        try:
            write_users(path, self._access.users)
        except OSError as problem:
            LOGGER.error("the users cannot be saved to %s: %s", path, problem)
            raise CommandError(NOT_SAVED) from None
        LOGGER.info("the users are written to %s", path)

    def lines(self) -> list[list[bytes]]:
        """The words of lines for the configuration file; none if the aclfile has the users."""
        if self._config.aclfile:
            return []
        return user_words(self._access.users, self._config.requirepass)


def _lines_of(users: Users) -> set[bytes]:
    return {user.line() for user in users}
