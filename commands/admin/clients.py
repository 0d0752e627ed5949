"""CLIENT: the properties of the connection, the list of all clients, and killing, pausing and
unblocking clients.

Clients are never evicted and there is no tracking of keys for caches on the client's side.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from millstream.commands.access.users import Users
from millstream.commands.admin.client_line import TYPES, Client, Filter, client_line, user_name
from millstream.commands.admin.connection import checked_name, is_plain
from millstream.commands.runtime.arguments import Args, take_timeout
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import NO_REPLY, OK, Verbatim
from millstream.commands.table.containers import Container, wrong_subcommand
from millstream.commands.table.registry import CommandGroup
from millstream.errors import SYNTAX, CommandError, shown

command = CommandGroup("server")

NO_SUCH_CLIENT = "ERR No such client"
BAD_CLIENT_ID = "ERR client-id should be greater than 0"
MONITOR_IN_TRANSACTION = "ERR MONITOR isn't allowed for DENY BLOCKING client"


if TYPE_CHECKING:

    class ConnectedClients(Protocol):
        def get(self, client_id: int) -> Client | None: ...
        def values(self) -> Collection[Client]: ...

        def kill(self, client: Client) -> None:
            """Closes another client's connection."""

        def pause(self, until_ms: int, writes_only: bool) -> None:
            """Postpones commands, or only writes, until a time of the steady clock."""

        def end_pause(self) -> None: ...

        def unblock(self, client: Client, error: bool) -> bool:
            """Ends a client's wait as its timeout would, or with an error; false if it does not
            wait."""

        def monitor(self, client: Any) -> None:
            """Shows the client every command from now on (MONITOR)."""

    class UsersByName(Protocol):
        users: Users

    class PrimaryLink(Protocol):
        def primary_clients(self) -> list[Client]:
            """The link to the primary, as a client."""

    class ClientsHost(Protocol):
        @property
        def clients(self) -> ConnectedClients: ...
        @property
        def access(self) -> UsersByName: ...
        @property
        def replication(self) -> PrimaryLink: ...


client_command = Container(
    "CLIENT",
    "connection",
    "A container for client connection commands.",
    since="2.4.0",
    tags="noscript loading stale",
)


@client_command("ID", "dataless", since="5.0.0")
def client_id(ctx: Context, args: Args) -> object:
    """Returns the unique client ID of the connection."""
    return ctx.session.id


@client_command(
    "SETNAME connection-name",
    "hot dataless request_policy:all_nodes response_policy:all_succeeded",
    since="2.6.9",
)
def client_setname(ctx: Context, args: Args) -> object:
    """Sets the connection name.

    An empty name removes the name."""
    ctx.session.name = checked_name(args.take())
    return OK


@client_command("GETNAME", "dataless", since="2.6.9")
def client_getname(ctx: Context, args: Args) -> object:
    """Returns the name of the connection."""
    return ctx.session.name or None


@client_command(
    "SETINFO <attr: LIB-NAME libname | LIB-VER libver>",
    "dataless request_policy:all_nodes response_policy:all_succeeded",
    since="7.2.0",
)
def client_setinfo(ctx: Context, args: Args) -> object:
    """Sets information specific to the client or connection."""
    attribute, value = args.take(), args.take()
    known = attribute.lower()
    if known not in (b"lib-name", b"lib-ver"):
        raise CommandError(f"ERR Unrecognized option '{shown(attribute)}'")
    if not is_plain(value):
        raise CommandError(
            f"ERR {known.decode()} cannot contain spaces, newlines or special characters."
        )
    if known == b"lib-name":
        ctx.session.lib_name = value
    else:
        ctx.session.lib_version = value
    return OK


def _take_switch(args: Args) -> bool:
    if args.option(b"ON"):
        return True
    if args.option(b"OFF"):
        return False
    raise CommandError(SYNTAX)


@client_command("NO-EVICT <enabled: ON | OFF>", "admin dataless audited", since="7.0.0")
def client_no_evict(ctx: Context, args: Args) -> object:
    """Sets the client eviction mode of the connection.

    The setting is stored and shown by CLIENT LIST, but clients are never evicted."""
    ctx.session.no_evict = _take_switch(args)
    return OK


@client_command("NO-TOUCH <enabled: ON | OFF>", "dataless", since="7.2.0")
def client_no_touch(ctx: Context, args: Args) -> object:
    """Controls whether commands sent by the client affect the LRU/LFU of accessed keys.

    While it is on, this client's commands do not update the keys' access times (OBJECT
    IDLETIME). TOUCH still does.
    """
    ctx.session.no_touch = _take_switch(args)
    return OK


# CLIENT LIST


def _client_text(ctx: Context, args: Args, clients: Iterable[Client]) -> Verbatim:
    own, words = ctx.session.id, args.all()
    lines = (
        client_line(client, ctx.steady_ms, words if client.id == own else None)
        for client in clients
    )
    return Verbatim("".join(line + "\n" for line in lines).encode("utf-8", "surrogateescape"))


@client_command("INFO", "dataless nondeterministic_output", since="6.2.0")
def client_info(ctx: Context[ClientsHost], args: Args) -> object:
    """Returns information about the connection."""
    client = ctx.server.clients.get(ctx.session.id)
    assert client is not None
    return _client_text(ctx, args, [client])


def _take_type(args: Args) -> Filter:
    word = args.take()
    found = TYPES.get(word.lower())
    if found is None:
        raise CommandError(f"ERR Unknown client type '{shown(word)}'")
    return found


def _all_clients(ctx: Context[ClientsHost]) -> list[Client]:
    """All connections, with the one to the primary."""
    return [*ctx.server.clients.values(), *ctx.server.replication.primary_clients()]


@client_command(
    "LIST [TYPE <client-type: NORMAL | MASTER | REPLICA | PUBSUB>] [ID client-id [client-id ...]]",
    "admin dataless nondeterministic_output",
    complexity="O(N), N the number of connections",
)
def client_list(ctx: Context, args: Args) -> object:
    """Lists open connections.

    The reply is text with a line of `name=value` pairs for each connection, oldest first."""
    chosen = _all_clients(ctx)
    clients = {client.id: client for client in chosen}
    if args.remaining >= 2 and args.option(b"TYPE"):
        chosen = list(filter(_take_type(args), chosen))
    elif args.remaining >= 2 and args.option(b"ID"):
        ids = [args.take_int_or("ERR Invalid client ID") for _ in range(args.remaining)]
        chosen = [clients[id_] for id_ in ids if id_ in clients]
    args.finish()
    return _client_text(ctx, args, chosen)


# CLIENT KILL


def _id_filter(args: Args) -> Filter:
    wanted = args.take_int_or(BAD_CLIENT_ID)
    if wanted < 1:
        raise CommandError(BAD_CLIENT_ID)
    return lambda client: client.id == wanted


def _user_filter(ctx: Context[ClientsHost], args: Args) -> Filter:
    name = args.take()
    if ctx.server.access.users.get(name) is None:
        raise CommandError(f"ERR No such user '{shown(name)}'")
    return lambda client: user_name(client) == name


def _age_filter(args: Args, now_ms: int) -> Filter:
    age_s = args.take_int_or("ERR maxage is not an integer or out of range")
    if age_s < 1:
        raise CommandError("ERR maxage should be greater than 0")
    return lambda client: (now_ms - client.created_ms) // 1000 >= age_s


def _kill_filter(option: bytes, ctx: Context, args: Args) -> Filter:
    if option == b"ID":
        return _id_filter(args)
    if option == b"TYPE":
        return _take_type(args)
    if option == b"USER":
        return _user_filter(ctx, args)
    if option == b"MAXAGE":
        return _age_filter(args, ctx.steady_ms)
    if option in (b"ADDR", b"LADDR"):
        address = args.take().decode("utf-8", "replace")
        if option == b"ADDR":
            return lambda client: client.address == address
        return lambda client: client.local_address == address
    raise CommandError(SYNTAX)


def _take_yes(args: Args) -> bool:
    if args.option(b"YES"):
        return True
    if args.option(b"NO"):
        return False
    raise CommandError(SYNTAX)


def _kill(ctx: Context[ClientsHost], chosen: list[Client]) -> None:
    for client in chosen:
        if client.id == ctx.session.id:
            ctx.session.close_after_reply = True
        else:
            ctx.server.clients.kill(client)


@client_command(
    "KILL <filter: ip:port | <new-format: ID client-id | TYPE <client-type: NORMAL | MASTER | "
    "REPLICA | PUBSUB> | USER username | ADDR ip:port | LADDR ip:port | SKIPME <skipme: YES | "
    "NO> | MAXAGE maxage> ...>",
    "admin dataless audited",
    complexity="O(N), N the number of connections",
)
def client_kill(ctx: Context, args: Args) -> object:
    """Terminates open connections.

    With only an address: OK, or an error if there is no such client. With options: the number of
    clients killed, namely those that match all options. SKIPME YES (the default) spares the caller.
    """
    clients = _all_clients(ctx)
    if args.remaining == 1:
        address = args.take().decode("utf-8", "replace")
        chosen = [client for client in clients if client.address == address]
        if not chosen:
            raise CommandError(NO_SUCH_CLIENT)
        _kill(ctx, chosen)
        return OK
    skip_me = True
    while args.remaining >= 2:
        option = args.take().upper()
        if option == b"SKIPME":
            skip_me = _take_yes(args)
        else:
            matches = _kill_filter(option, ctx, args)
            clients = [client for client in clients if matches(client)]
    args.finish()
    if skip_me:
        clients = [client for client in clients if client.id != ctx.session.id]
    _kill(ctx, clients)
    return len(clients)


# Replies, blocked clients, pauses


@client_command("REPLY <action: ON | OFF | SKIP>", "dataless", since="3.2.0")
def client_reply(ctx: Context, args: Args) -> object:
    """Instructs the server whether to reply to commands.

    OFF stops all replies, including its own. SKIP drops its own reply and the next one. ON, which
    returns OK, turns replies back on. Messages on channels are always sent.
    """
    session = ctx.session
    if args.option(b"ON"):
        session.reply_mode = "on"
        return OK
    if args.option(b"OFF"):
        session.reply_mode = "off"
    elif args.option(b"SKIP"):
        if session.reply_mode != "off":
            session.reply_mode = "skip"
    else:
        raise CommandError(SYNTAX)
    return NO_REPLY


@client_command("UNBLOCK client-id [unblock-type: TIMEOUT | ERROR]", "admin audited", since="5.0.0")
def client_unblock(ctx: Context[ClientsHost], args: Args) -> object:
    """Unblocks a client blocked by a blocking command from a different connection.

    Ends another client's wait as its timeout would (TIMEOUT, the default) or with the error
    `UNBLOCKED`. Returns 1, or 0 if there is no such client or it is not waiting for data.
    """
    if args.remaining > 2:
        raise wrong_subcommand("CLIENT", args[1])
    number = args.take_int()
    error = False
    if args.remaining and not args.option(b"TIMEOUT"):
        if not args.option(b"ERROR"):
            raise CommandError("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")
        error = True
    client = ctx.server.clients.get(number)
    return int(client is not None and ctx.server.clients.unblock(client, error))


@client_command("PAUSE timeout [mode: WRITE | ALL]", "admin dataless audited", since="3.0.0")
def client_pause(ctx: Context[ClientsHost], args: Args) -> object:
    """Suspends commands processing.

    Postpones commands for `timeout` milliseconds: the commands of all clients (ALL, the
    default), or writes, PUBLISH and transactions that contain them (WRITE). Keys do not expire
    during that time. If two pauses overlap, the longer time and the stricter mode apply.
    """
    if args.remaining > 2:
        raise wrong_subcommand("CLIENT", args[1])
    timeout_ms = take_timeout(args)
    writes_only = args.option(b"WRITE")
    if not writes_only and args.remaining and not args.option(b"ALL"):
        raise CommandError("ERR CLIENT PAUSE mode must be WRITE or ALL")
    ctx.server.clients.pause(ctx.steady_ms + timeout_ms, writes_only)
    return OK


@client_command(
    "UNPAUSE",
    "admin dataless audited",
    since="6.2.0",
    complexity="O(N), N the number of paused clients",
)
def client_unpause(ctx: Context[ClientsHost], args: Args) -> object:
    """Resumes processing commands from paused clients."""
    ctx.server.clients.end_pause()
    return OK


@client_command("GETREDIR", "dataless", since="6.0.0")
def client_getredir(ctx: Context, args: Args) -> object:
    """Returns the client ID to which tracking notifications are redirected.

    The reply is always -1: there is no tracking."""
    return -1


# MONITOR


@command("MONITOR", "admin noscript loading stale audited")
def monitor(ctx: Context[ClientsHost], args: Args) -> object:
    """Listens for all requests received by the server in real-time.

    Sends every command that runs from now on as a status line: time, database, address and
    arguments. RESET and QUIT end it. Commands with the flag `admin` are not shown, and passwords
    appear as `(redacted)`.
    """
    if not ctx.may_block:
        raise CommandError(MONITOR_IN_TRANSACTION)
    if ctx.session.monitoring:
        return NO_REPLY
    ctx.server.clients.monitor(ctx.session)
    return OK
