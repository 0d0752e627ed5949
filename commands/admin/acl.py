"""ACL: users and their rules, who was refused, and the file of users."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from millstream.commands.access.catalog import in_category
from millstream.commands.access.denial_log import DenialLog
from millstream.commands.access.users import (
    DEFAULT_USER,
    Selector,
    User,
    Users,
    changed_user,
    has_spaces,
)
from millstream.commands.access.verdict import denial
from millstream.commands.admin.client_line import user_name
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import OK, BlockedRead, OrderedSet, Wait
from millstream.commands.table.categories import CATEGORIES
from millstream.commands.table.containers import Container, wrong_subcommand
from millstream.commands.table.registry import COMMANDS, Command
from millstream.errors import CommandError, shown, wrong_arity

GENPASS_MAX_BITS = 4096
GENPASS_BITS = 256
LOG_COUNT = 10
SHOWN_CATEGORY_BYTES = 128

acl_command = Container(
    "ACL",
    "server",
    "A container for Access List Control commands.",
    since="6.0.0",
    tags="noscript loading stale",
)


UserChange = Callable[[Users], object]
"""Changes users, and returns the reply. CommandError changes nothing."""

STILL_CHANGING = (
    "ERR the change of the users has not ended yet: ACL LIST shows whether they have changed"
)
IN_TRANSACTION = "ERR the users of a cluster cannot be changed in a transaction"


if TYPE_CHECKING:

    class Outcome(Protocol):
        """The reply to a change of a cluster; None until there is one. `is_waited`: a client waits
        for it."""

        reply: object
        is_waited: bool


class ClusterUsers(Protocol):
    """The users of all nodes of a cluster, which are in a store."""

    def change(self, client_id: int, change: UserChange) -> Outcome:
        """Begins a change. It is applied to the users in the store, more than once if others change
        them, too. When its reply is there, the wait of the client ends."""

    def from_file(self, users: Users) -> None:
        """Replaces users by those of the aclfile of this node. CommandError changes nothing."""


if TYPE_CHECKING:

    class UserTable(Protocol):
        """Users, and the log of refusals. `shared`: those of all nodes of a cluster; None for a
        server that has its own."""

        users: Users
        log: DenialLog
        shared: ClusterUsers | None

        def set_user(self, user: User) -> None:
            """Adds this user, or gives the one with this name these rules."""

        def remove(self, name: bytes) -> bool:
            """Removes a user and disconnects its clients; false if there is none of this name."""

    class UserStore(Protocol):
        """The file of users."""

        def load(self) -> None:
            """Reads the file again; an error changes nothing."""

        def save(self) -> None:
            """Replaces the file."""

    class AclHost(Protocol):
        @property
        def access(self) -> UserTable: ...
        @property
        def user_store(self) -> UserStore: ...

        def random_number(self) -> int:
            """64 random bits."""


# Users of all nodes


class OutcomeWait(BlockedRead):
    """The wait for the reply to a change of a cluster. `unfinished` is the error while there is
    none."""

    unfinished: str

    def __init__(self, outcome: Outcome) -> None:
        self.keys = []
        self.outcome = outcome
        outcome.is_waited = True

    def timeout_reply(self, ctx: Context) -> object:
        return CommandError(self.unfinished) if self.outcome.reply is None else self.outcome.reply

    def ended(self, ctx: Context) -> None:
        self.outcome.is_waited = False


class ChangeWait(OutcomeWait):
    """The wait for the reply to a change of the users of all nodes."""

    unfinished = STILL_CHANGING


def _change_all(ctx: Context[AclHost], shared: ClusterUsers, change: UserChange) -> object:
    if not ctx.may_block:
        raise CommandError(IN_TRANSACTION)
    return Wait(ChangeWait(shared.change(ctx.session.id, change)), 0)


# Users


@acl_command(
    "SETUSER username [rule [rule ...]]",
    "admin audited request_policy:all_nodes response_policy:all_succeeded",
    complexity="O(N), N the number of rules",
)
def acl_setuser(ctx: Context[AclHost], args: Args) -> object:
    """Creates and modifies an ACL user and its rules.

    The reply is OK. The rules are applied in order; after an error, none is. They affect the user's
    connected clients immediately: waiting reads that are now forbidden end, and subscribers to
    forbidden channels are disconnected.
    """
    name, *rules = args.rest()
    if has_spaces(name):
        raise CommandError("ERR Usernames can't contain spaces or null characters")
    access = ctx.server.access

    def changed(users: Users) -> User:
        return changed_user(users.get(name) or users.new(name), rules)

    def change(users: Users) -> object:
        users.put(changed(users))
        return OK

    if access.shared is not None:
        changed(access.users)  # an error in the rules is found at once
        return _change_all(ctx, access.shared, change)
    access.set_user(changed(access.users))
    return OK


@acl_command(
    "DELUSER username [username ...]",
    "admin audited request_policy:all_nodes response_policy:all_succeeded",
    complexity="O(N), N the number of names and of connections",
)
def acl_deluser(ctx: Context[AclHost], args: Args) -> object:
    """Deletes ACL users, and terminates their connections.

    The reply is the number of users deleted."""
    names = args.rest()
    if DEFAULT_USER in names:
        raise CommandError("ERR The 'default' user cannot be removed")
    access = ctx.server.access

    def change(users: Users) -> object:
        return sum(users.remove(name) is not None for name in names)

    if access.shared is not None:
        return _change_all(ctx, access.shared, change)
    return sum(access.remove(name) for name in names)


def _selector_reply(selector: Selector) -> dict[bytes, object]:
    return {
        b"commands": selector.commands_text(),
        b"keys": selector.keys_text(),
        b"channels": selector.channels_text(),
    }


@acl_command(
    "GETUSER username",
    "admin",
    complexity="O(N), N the number of passwords, commands and pattern rules that the user has",
)
def acl_getuser(ctx: Context[AclHost], args: Args) -> object:
    """Lists the ACL rules of a user.

    The reply is a map of flags, passwords (as SHA-256), commands, keys, channels and selectors;
    null if there is no such user.
    """
    user = ctx.server.access.users.get(args.take())
    if user is None:
        return None
    return {
        b"flags": OrderedSet(user.flags()),
        b"passwords": list(user.passwords),
        **_selector_reply(user.root),
        b"selectors": [_selector_reply(selector) for selector in user.selectors[1:]],
    }


@acl_command("LIST", "admin", complexity="O(N), N the number of users")
def acl_list(ctx: Context[AclHost], args: Args) -> object:
    """Dumps the effective rules in ACL file format.

    The reply is a line for each user, sorted by name."""
    return [user.line() for user in ctx.server.access.users]


@acl_command("USERS", "admin", complexity="O(N), N the number of users")
def acl_users(ctx: Context[AclHost], args: Args) -> object:
    """Lists all ACL users."""
    return [user.name for user in ctx.server.access.users]


@acl_command("WHOAMI")
def acl_whoami(ctx: Context, args: Args) -> object:
    """Returns the authenticated username of the current connection."""
    return user_name(ctx.session)


# Commands and permissions


@acl_command("CAT [category]", complexity="O(1), the number of commands does not change")
def acl_cat(ctx: Context, args: Args) -> object:
    """Lists the ACL categories, or the commands inside a category.

    The reply is all categories of Redis, including those without commands here."""
    if not args.remaining:
        return [category.encode() for category in CATEGORIES]
    word = args.take()
    if args.remaining:
        raise wrong_subcommand("ACL", args[1])
    category = word.lower().decode("utf-8", "surrogateescape")
    if category not in CATEGORIES:
        raise CommandError(f"ERR Unknown category '{shown(word[:SHOWN_CATEGORY_BYTES])}'")
    return [entry.name.encode() for entry in in_category(category)]


def _find_command(words: list[bytes]) -> Command:
    """The row of a request; CommandError in Redis' words."""
    row = COMMANDS.get(words[0].lower())
    if row is not None and row.subcommands and len(words) > 1:
        row = row.subcommands.get(words[1].lower())
    if row is None:
        raise CommandError(f"ERR Command '{shown(words[0])}' not found")
    if len(words) != row.arity if row.arity > 0 else len(words) < -row.arity:
        raise wrong_arity(row.name)
    return row


@acl_command("DRYRUN username command [arg [arg ...]]", "admin", since="7.0.0")
def acl_dryrun(ctx: Context[AclHost], args: Args) -> object:
    """Simulates the execution of a command by a user, without executing the command.

    The reply is OK, or a text that says which permission the user lacks, with the name of the key
    or channel."""
    name, *words = args.rest()
    user = ctx.server.access.users.get(name)
    if user is None:
        raise CommandError(f"ERR User '{shown(name)}' not found")
    found = denial(user, _find_command(words), words)
    return OK if found is None else found.detailed().encode("utf-8", "surrogateescape")


@acl_command("GENPASS [bits]")
def acl_genpass(ctx: Context[AclHost], args: Args) -> object:
    """Generates a pseudorandom, secure password that can be used to identify ACL users.

    The reply is hexadecimal digits with this number of random bits (256 by default), or up to 3
    more."""
    bits = args.take_int() if args.remaining else GENPASS_BITS
    if args.remaining:
        raise wrong_subcommand("ACL", args[1])
    if not 0 < bits <= GENPASS_MAX_BITS:
        raise CommandError(
            "ERR ACL GENPASS argument must be the number of bits for the output password, a "
            f"positive number up to {GENPASS_MAX_BITS}"
        )
    digits = (bits + 3) // 4
    text = "".join(f"{ctx.server.random_number():016x}" for _ in range((digits + 15) // 16))
    return text[:digits].encode()


@acl_command(
    "LOG [operation: count | RESET]",
    "admin audited",
    complexity="O(N), N the number of entries",
)
def acl_log(ctx: Context[AclHost], args: Args) -> object:
    """Lists recent security events generated due to ACL rules.

    The reply is the latest entries (10 by default), newest first, as maps. RESET clears the log and
    returns OK."""
    if args.remaining > 1:
        raise wrong_subcommand("ACL", args[1])
    log = ctx.server.access.log
    if args.option(b"RESET"):
        log.clear()
        return OK
    count = args.take_int() if args.remaining else LOG_COUNT
    return [entry.described(ctx.now_ms) for entry in log.newest(count)]


# The file


@acl_command("LOAD", "admin audited", complexity="O(N), N the number of users")
def acl_load(ctx: Context[AclHost], args: Args) -> object:
    """Reloads the rules from the configured ACL file.

    The reply is OK. Clients of users that were removed or changed are disconnected. If a line of
    the file is invalid, the error names it and nothing changes.
    """
    shared = ctx.server.access.shared
    if shared is not None:
        return _change_all(ctx, shared, partial(_load, shared))
    ctx.server.user_store.load()
    return OK


def _load(shared: ClusterUsers, users: Users) -> object:
    shared.from_file(users)
    return OK


@acl_command(
    "SAVE",
    "admin audited request_policy:all_nodes response_policy:all_succeeded",
    complexity="O(N), N the number of users",
)
def acl_save(ctx: Context[AclHost], args: Args) -> object:
    """Saves the effective ACL rules in the configured ACL file.

    The reply is OK: the file is replaced as a whole and synced."""
    ctx.server.user_store.save()
    return OK
