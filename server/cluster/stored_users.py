"""The users of all nodes of a cluster on many machines: the lines of an aclfile, in its store.

A change is a transaction that compares the version, so that no change by another node is lost. Its
reply is sent when this node has applied it. Each node writes what it has applied to its aclfile, or
to users.acl in its data directory, and reads that when it starts: the users are the same while the
store cannot be reached.

Until the first change the store has no users, and each node has its own. They
become those of all nodes with the change. `default` is among them only if it is not as requirepass
makes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from millstream.commands.access.users import DEFAULT_USER, User, Users
from millstream.commands.admin.acl import UserChange
from millstream.errors import CommandError, StartError
from millstream.server.cluster.pending_changes import PendingChange, PendingChanges
from millstream.server.cluster.shared_users import NAME
from millstream.server.cluster.store.records import USERS
from millstream.server.cluster.store.store import Change, Compare, Contents, Store, Value
from millstream.server.config.directives import Config
from millstream.server.config.file_replacement import replace_file
from millstream.server.config.user_files import read_users, text_of, users_in, with_default
from millstream.server.execution.access import Access
from millstream.server.execution.user_store import NO_FILE
from millstream.server.monitor.log import LOGGER

REFUSED = "ERR users cannot be changed"
UNREACHABLE = "ERR users cannot be changed while etcd is unreachable"
LIMIT_S = 10.0  # of a change
ATTEMPTS = 20
PLACE = "users in etcd"


class StoredUsers:
    """`take` gets the contents of the store whenever they change."""

    def __init__(self, store: Store, access: Access, config: Config) -> None:
        self._store = store
        self._access = access
        self._config = config
        self._applied: bytes | None = None
        self._revision = 0  # of the contents that were taken last
        self._taken = asyncio.Event()
        self._turn = asyncio.Lock()  # one change of this node after the other
        self._changes = PendingChanges(REFUSED, UNREACHABLE, LIMIT_S, access.end_wait)
        access.shared = self

    def load_first(self) -> None:
        """The users that this node had when it ran last, unless its aclfile has them. StartError
        if they cannot be read."""
        if self._config.user_lines:
            raise StartError(
                f"{self._config.user_lines[0].where}: `user` lines cannot be given with "
                "cluster-name: write the users into an aclfile, and use ACL LOAD at one node"
            )
        if self._config.aclfile or not self._path().exists():
            return
        try:
            self._access.replace(self._from_file())
        except CommandError as problem:
            raise StartError(problem.message.removeprefix("ERR ")) from None

    def take(self, contents: Contents) -> None:
        value = contents.values.get(USERS)
        if value is not None and value.data != self._applied:
            self._apply(value.data)
        self._revision = contents.revision
        self._taken.set()

    def _apply(self, data: bytes) -> None:
        self._applied = data
        try:
            users = users_in(data, PLACE, self._access.users)
        except CommandError as problem:
            LOGGER.error("the users of the cluster cannot be read: %s", problem.message)
            return
        self._access.update(with_default(users, self._config.requirepass))
        try:
            replace_file(self._path(), data, mode=0o600)
        except OSError as problem:
            LOGGER.error("the users cannot be written to %s: %s", self._path(), problem.strerror)

    def _path(self) -> Path:
        return Path(self._config.located(self._config.aclfile or NAME))

    def _from_file(self) -> list[User]:
        found = read_users(self._path(), self._access.users)
        return with_default(found, self._config.requirepass)

    # Changes

    def change(self, client_id: int, change: UserChange) -> PendingChange:
        return self._changes.begin(client_id, lambda: self._changed(change))

    def from_file(self, users: Users) -> None:
        """Replace users by those of the aclfile of this node."""
        if not self._config.aclfile:
            raise CommandError(NO_FILE)
        users.replace(self._from_file())

    def stop(self) -> None:
        self._changes.stop()

    async def _changed(self, change: UserChange) -> object:
        """The reply of a change, once this node has applied it."""
        async with self._turn:
            reply, revision = await self._commit(change)
            while self._revision < revision:
                self._taken.clear()
                await self._taken.wait()
            return reply

    async def _commit(self, change: UserChange) -> tuple[object, int]:
        """The reply of a change that is in the store, and the revision from which on it is."""
        for _ in range(ATTEMPTS):
            value = (await self._store.read()).values.get(USERS)
            users = self._users_of(value)
            reply = change(users)
            data = self._text_of(users)
            if value is not None and data == value.data:
                return reply, value.version
            version = 0 if value is None else value.version
            commit = await self._store.commit([Compare(USERS, version)], [Change(USERS, data)])
            if commit.done:
                return reply, commit.revision
        raise CommandError("ERR users cannot be changed: other nodes change them all the time")

    def _users_of(self, value: Value | None) -> Users:
        own = self._access.users
        users = Users(all_channels=own.all_channels)
        found: Iterable[User] = (
            [user.copy() for user in own]
            if value is None
            else with_default(users_in(value.data, PLACE, own), self._config.requirepass)
        )
        users.replace(found)
        return users

    def _text_of(self, users: Users) -> bytes:
        fresh = Users()
        fresh.set_default_password(self._config.requirepass.encode("utf-8", "surrogateescape"))
        is_plain = users.default.line() == fresh.default.line()
        return text_of(user for user in users if not (is_plain and user.name == DEFAULT_USER))
