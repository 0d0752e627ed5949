"""Connected clients and their users, and what happens when the rules of users change.

A client refers to its user. `permission` is None while the user may do everything, and the executor
checks permissions only while at least one client has one, so a server without restricted users pays
nothing. When rules change, clients get their new permission at once, blocked reads of keys that are
now forbidden end, and subscribers to forbidden channels are disconnected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from millstream.commands.access.denial_log import DenialLog
from millstream.commands.access.permission import Permission
from millstream.commands.access.users import READ, WRITE, User, Users
from millstream.commands.access.verdict import AUTH, Denial, denial, denial_of_wait, may_hear
from millstream.commands.admin.acl import ChangeWait, ClusterUsers
from millstream.commands.admin.client_line import client_line
from millstream.commands.table.introspection import find
from millstream.commands.table.registry import Command
from millstream.errors import CommandError
from millstream.server.execution.executor import Executor
from millstream.server.monitor.log import LOGGER

Kill = Callable[[Any], None]


class _Scraper:
    """A client of the metrics port, as a failed login shows it."""

    def __init__(
        self,
        address: str,
        id: int = 0,
    ) -> None:
        self.address = address
        self.id = id


class Access:
    """Users and their connected clients. `kill` closes a client's connection."""

    def __init__(self, executor: Executor, clients: Mapping[int, Any], kill: Kill) -> None:
        self.users = Users()
        self.log = DenialLog()
        # The reason why no other client may log in as a user; None if one may.
        self.limit_refusal: Callable[[User], str | None] = lambda user: None
        # Called with a client whose user has changed.
        self.note_user: Callable[[Any], object] = lambda client: None
        # Called with the name and the new line of a user that a client has changed; None: removed.
        self.when_changed: Callable[[bytes, bytes | None], object] = lambda name, line: None
        self.shared: ClusterUsers | None = None
        self._executor = executor
        self._clients = clients
        self._kill = kill
        self._restricted: set[int] = set()
        self._permissions: dict[bytes, Permission | None] = {}  # by the user's name

    # Clients

    @property
    def password_required(self) -> bool:
        """True if a new connection has to log in."""
        default = self.users.default
        return not (default.no_password and default.enabled)

    def log_in_default(self, client: Any) -> None:
        """Make a client that has not logged in the user `default`, if that user needs no
        password."""
        default = self.users.default
        client.authenticated = not self.password_required
        if client.permission is None and self._permissions.get(default.name, default) is None:
            client.user = default  # the usual case, for each accepted connection
        else:
            self._assign(client, default)

    def reset(self, client: Any) -> None:
        """RESET: make a client `default` again. It is closed if that user has too many clients."""
        was_default = client.authenticated and client.user is self.users.default
        if not was_default and not self.password_required:
            client.close_after_reply |= self.limit_refusal(self.users.default) is not None
        self.log_in_default(client)
        self.note_user(client)

    def check_limit(self, user: User) -> None:
        """CommandError if no other client may log in as this user."""
        refusal = self.limit_refusal(user)
        if refusal is not None:
            raise CommandError(refusal)

    def log_in(self, client: Any, user: User) -> None:
        """CommandError if the user has too many clients."""
        if not client.authenticated or client.user is not user:
            self.check_limit(user)
        client.authenticated = True
        self._assign(client, user)

    def log_in_by_certificate(self, client: Any, name: str) -> None:
        """Log in the user with the common name of the client's certificate, if that user exists and
        is on."""
        encoded = name.encode("utf-8", "surrogateescape")
        user = self.users.get(encoded)
        if user is not None and user.enabled:
            self.log_in(client, user)
        elif name:
            self.refuse_login(client, encoded, b"tls-auth-clients-user")

    def refuse_login(self, client: Any, name: bytes, word: bytes) -> None:
        """Note a wrong password; `word` is the command that had it."""
        self._executor.audit.login_failed(client, name, word)
        self._note(client, Denial(AUTH, word, name), self._context_of(client))

    def refuse_scrape(self, address: str, name: bytes) -> None:
        """Note a wrong password in a request for the metrics."""
        self._executor.audit.login_failed(_Scraper(address), name, b"METRICS-AUTH")
        self.log.counts[AUTH] += 1

    def forget(self, client: Any) -> None:
        """Forget a disconnected client."""
        if client.permission is not None:
            self._restricted.discard(client.id)
            self._set_guard()

    def _assign(self, client: Any, user: User) -> None:
        client.user = user
        self.note_user(client)
        self._permit(client)
        self._set_guard()

    def _permit(self, client: Any) -> None:
        """Give a client the permission of its user."""
        client.permission = self._permission_of(client.user)
        if client.permission is None:
            self._restricted.discard(client.id)
        else:
            self._restricted.add(client.id)

    def _permission_of(self, user: User) -> Permission | None:
        """None for a user who may do everything. Kept until the rules change, because each
        accepted connection and each login needs it."""
        if user.name not in self._permissions:
            self._permissions[user.name] = None if user.is_unrestricted else Permission(user)
        return self._permissions[user.name]

    def _set_guard(self) -> None:
        self._executor.admission.set_restricted(bool(self._restricted))

    # Changes of users

    def set_default_password(self, password: str) -> None:
        """requirepass."""
        was_required = self.password_required
        self.users.set_default_password(password.encode("utf-8", "surrogateescape"))
        self.changed(self.users.default)
        if was_required and not self.password_required:
            LOGGER.warning("config   clients need no password now: requirepass is empty")

    def set_user(self, user: User) -> None:
        """Add this user, or give the one with this name these rules."""
        known = self.users.get(user.name)
        if known is None:
            self.users.add(user)
        else:
            known.take_over(user)
            self.changed(known)
        self.when_changed(user.name, user.line())

    def changed(self, user: User) -> None:
        """The user's rules have changed."""
        self._executor.admission.set_password_required(self.password_required)
        self._permissions.pop(user.name, None)
        for client in self._clients_of(user):
            self._permit(client)
            if client.permission is not None:
                self._enforce(client)
        self._set_guard()

    def remove(self, name: bytes) -> bool:
        """Remove a user and disconnect its clients; false if there is none of this name."""
        user = self.users.remove(name)
        if user is None:
            return False
        self._permissions.pop(name, None)
        self._disconnect(self._clients_of(user))
        self.when_changed(name, None)
        return True

    def replace(self, users: Iterable[User]) -> None:
        """Replace all users. Clients of removed and of changed users are disconnected; the others
        stay connected."""
        before = {user.name: (user, user.describe()) for user in self.users}
        self.users.replace(users)
        self._permissions.clear()
        for name, (user, rules) in before.items():
            now = self.users.get(name)
            clients = self._clients_of(user)
            if now is None or now.describe() != rules:
                self._disconnect(clients)
                continue
            for client in clients:
                self._assign(client, now)
        self._executor.admission.set_password_required(self.password_required)

    def update(self, users: Iterable[User]) -> None:
        """Give all users these rules, after changes by another node. Clients of changed users stay
        connected, as after ACL SETUSER; those of removed users are disconnected."""
        found = {user.name: user for user in users}
        gone = [user for user in self.users if user.name not in found]
        for user in gone:
            if user is not self.users.default:
                self.users.remove(user.name)
                self._permissions.pop(user.name, None)
                self._disconnect(self._clients_of(user))
        for user in found.values():
            known = self.users.get(user.name)
            if known is None:
                self.users.add(user)
            elif known.line() != user.line():
                known.take_over(user)
                self.changed(known)

    def end_wait(self, client_id: int) -> None:
        """A change of shared users has ended, for which this client waits."""
        client = self._clients.get(client_id)
        if client is not None:
            self._executor.unblock_client(client, False)

    def _clients_of(self, user: User) -> list[Any]:
        return [client for client in self._clients.values() if client.user is user]

    def _disconnect(self, clients: Iterable[Any]) -> None:
        """Close connections. The client whose command is running still gets its reply."""
        current: Any = self._executor.current
        for client in clients:
            if client is current:
                client.close_after_reply = True
                client.authenticated = False
                self._assign(client, self.users.default)
            else:
                self._kill(client)

    def _enforce(self, client: Any) -> None:
        """End the blocked read or the subscriptions of a client if its user is no longer allowed to
        have them."""
        if not may_hear(client.user, [*client.channels, *client.shard_channels], client.patterns):
            self._disconnect([client])
            return
        waiting = self._executor.waiting_read(client)
        if waiting is None or isinstance(waiting[1], ChangeWait):
            return  # the client has changed its own rules
        row, read = waiting
        name, use = row.name, READ
        if row.writes_with is not None and read.group is not None:
            name += f"|{row.writes_with.decode().lower()}"
            use |= WRITE
        found = denial_of_wait(client.user, name, [key for _, key in read.keys], use)
        if found is not None:
            self._note(client, found, "toplevel")
            self._executor.end_wait(client, found.error().message)

    # Refusals

    def refusal(
        self, client: Any, row: Command, words: list[bytes], in_multi: bool, at_exec: bool
    ) -> CommandError | None:
        """The reason why a client may not run a request; None if it may."""
        found = denial(client.user, row, words)
        if found is None:
            return None
        client.last_command = row.name
        self._note(client, found, "multi" if in_multi else "toplevel")
        if row.name == "exec":
            client.leave_transaction()
            return CommandError(
                f"EXECABORT Transaction discarded because of: {found.error().message}"
            )
        return found.error_at_exec() if at_exec else found.error()

    def check_script(self, client: Any, words: list[bytes]) -> None:
        """Refuse, with a CommandError, a command that a script runs for this client."""
        if client.permission is None:
            return
        row = find(words[0])
        assert row is not None
        found = denial(client.user, row, words)
        if found is not None:
            self._note(client, found, "lua")
            raise found.error_in_script()

    def _context_of(self, client: Any) -> str:
        return "toplevel" if client.queue is None else "multi"

    def _note(self, client: Any, found: Denial, context: str) -> None:
        now = self._executor.context
        line = client_line(client, now.steady_ms)
        self.log.note(found.reason, context, found.subject, found.user, line, now.now_ms)
