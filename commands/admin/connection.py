"""Commands about the connection: greeting, password, database, reset and end.

CLIENT has a module of its own (clients), and so have users (acl).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Protocol

from millstream.commands.access.users import DEFAULT_USER, User, Users
from millstream.commands.generic.keys import NOT_IN_CLUSTER, take_database
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context, Session
from millstream.commands.runtime.replies import OK, Simple
from millstream.commands.table.registry import CommandGroup
from millstream.errors import SYNTAX, CommandError, shown

command = CommandGroup("connection")

REDIS_VERSION = "8.10.0"  # whose stream commands are supported: clients enable features by it
SERVER_NAME = "millstream"

WRONG_PASSWORD = "WRONGPASS invalid username-password pair or user is disabled."
NO_PASSWORD_SET = (
    "ERR AUTH <password> called without any password configured for the default user. "
    "Are you sure your configuration is correct?"
)
HELLO_NEEDS_AUTH = (
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the "
    "HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and "
    "select the RESP protocol version at the same time"
)
_NOT_PLAIN = rb"[^!-~]"
BAD_NAME = "ERR Client names cannot contain spaces, newlines or special characters."


if TYPE_CHECKING:

    class Logins(Protocol):
        """The users of connected clients."""

        users: Users

        def reset(self, client: Session) -> None:
            """Makes the client `default` again, logged in only if that user needs no password."""

        def log_in(self, client: Session, user: User) -> None:
            """CommandError if the user has too many clients."""

        def refuse_login(self, client: Session, name: bytes, word: bytes) -> None:
            """Records a wrong password; `word` is the command that had it."""

    class Subscriptions(Protocol):
        def forget(self, client: Any) -> None:
            """Ends all of a client's subscriptions without a message."""

    class MonitoringClients(Protocol):
        def end_monitor(self, client: Any) -> None:
            """Ends MONITOR for a client."""

    class RoleName(Protocol):
        @property
        def is_replica(self) -> bool: ...

    class ConnectionHost(Protocol):
        @property
        def access(self) -> Logins: ...
        @property
        def pubsub(self) -> Subscriptions: ...
        @property
        def clients(self) -> MonitoringClients: ...
        @property
        def replication(self) -> RoleName: ...


# Greeting and password


@command("ECHO message", "fast loading stale dataless")
def echo(ctx: Context, args: Args) -> object:
    """Returns the given string."""
    return args.take()


@command("QUIT", "noscript loading stale fast no_auth allow_busy unqueued subscribed", arity=-1)
def quit_(ctx: Context, args: Args) -> object:
    """Closes the connection.

    The reply is OK; the server closes the connection after sending it."""
    ctx.session.close_after_reply = True
    return OK


@command(
    "RESET", "noscript loading stale fast no_auth allow_busy unqueued subscribed", since="6.2.0"
)
def reset(ctx: Context[ConnectionHost], args: Args) -> object:
    """Resets the connection.

    Returns the connection to its initial state: no transaction, no watched keys, no
    subscriptions, no MONITOR, replies on, RESP2, database 0, no name, and the user `default`, not
    authenticated if that user needs a password. The name of the client library is kept.
    """
    session = ctx.session
    session.leave_transaction()
    ctx.server.pubsub.forget(session)
    ctx.server.clients.end_monitor(session)
    session.reply_mode = "on"
    session.db_index = 0
    session.resp = 2
    session.name = b""
    session.no_evict = False
    session.no_touch = False
    ctx.server.access.reset(session)
    return Simple(b"RESET")


def _authenticate(ctx: Context[ConnectionHost], name: bytes, password: bytes, word: bytes) -> None:
    """Log in; `word` is the command, for ACL LOG."""
    access = ctx.server.access
    user = access.users.get(name)
    if user is None or not user.accepts(password):
        access.refuse_login(ctx.session, name, word)
        raise CommandError(WRONG_PASSWORD)
    access.log_in(ctx.session, user)


@command("AUTH [username] password", "noscript loading stale fast no_auth allow_busy dataless")
def auth(ctx: Context[ConnectionHost], args: Args) -> object:
    """Authenticates the connection.

    The reply is OK. Without a name, the user is `default`, whose password is set by the directive
    `requirepass`."""
    words = args.rest()
    if len(words) > 2:
        raise CommandError(SYNTAX)
    if len(words) == 1 and ctx.server.access.users.default.no_password:
        raise CommandError(NO_PASSWORD_SET)
    name = words[0] if len(words) == 2 else DEFAULT_USER
    _authenticate(ctx, name, words[-1], args[0])
    return OK


def _take_protocol(args: Args) -> int:
    version = args.take_int_or("ERR Protocol version is not an integer or out of range")
    if version not in (2, 3):
        raise CommandError("NOPROTO unsupported protocol version")
    return version


@command(
    "HELLO [arguments: protover [{auth: AUTH username password}] [SETNAME clientname]]",
    "noscript loading stale fast no_auth allow_busy dataless",
    since="6.0.0",
)
def hello(ctx: Context[ConnectionHost], args: Args) -> object:
    """Handshakes with the server.

    The reply is a map of the server's properties. `protover` 2 or 3 selects the protocol of this
    reply and of all later ones.
    """
    session = ctx.session
    version = _take_protocol(args) if args.remaining else session.resp
    credentials: tuple[bytes, bytes] | None = None
    name: bytes | None = None
    while args.remaining:
        option = args.take()
        if option.upper() == b"AUTH" and args.remaining >= 2:
            credentials = args.take(), args.take()
        elif option.upper() == b"SETNAME" and args.remaining:
            name = checked_name(args.take())
        else:
            raise CommandError(f"ERR Syntax error in HELLO option '{shown(option)}'")
    if credentials is not None:
        _authenticate(ctx, *credentials, args[0])
    if not session.authenticated:
        raise CommandError(HELLO_NEEDS_AUTH)
    if name is not None:
        session.name = name
    session.resp = version
    return {
        b"server": SERVER_NAME.encode(),
        b"version": REDIS_VERSION.encode(),
        b"proto": version,
        b"id": session.id,
        b"mode": b"cluster" if ctx.keyspace.clustered else b"standalone",
        b"role": b"replica" if ctx.server.replication.is_replica else b"master",
        b"modules": [],
    }


@command("SELECT index", "fast loading stale dataless")
def select(ctx: Context, args: Args) -> object:
    """Changes the selected database.

    In a cluster, there is only database 0."""
    refusal = NOT_IN_CLUSTER % "SELECT"
    ctx.session.db_index = take_database(ctx, args, refusal).index
    return OK


# Names, as HELLO and CLIENT set them


def is_plain(text: bytes) -> bool:
    """True if a text is printable ASCII without spaces, so that it cannot break the lines of CLIENT
    LIST."""
    return re.search(_NOT_PLAIN, text) is None


def checked_name(name: bytes) -> bytes:
    if not is_plain(name):
        raise CommandError(BAD_NAME)
    return name
