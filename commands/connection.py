"""A client's own affairs: greeting, password, database, name, and the list of all clients.

Only the user `default` exists. CLIENT LIST prints Redis' fields in Redis' order, because tools
split its lines by position as well as by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from millstream.commands.containers import container
from millstream.commands.registry import command
from millstream.commands.replies import OK, Simple, Verbatim
from millstream.errors import SYNTAX, CommandError, shown, wrong_arity

if TYPE_CHECKING:
    from millstream.commands.arguments import Args
    from millstream.commands.context import Context
    from millstream.commands.outside import Client

REDIS_VERSION = "8.6.0"  # what clients gate features on
SERVER_NAME = "millstream"

DEFAULT_USER = b"default"
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
BAD_NAME = "ERR Client names cannot contain spaces, newlines or special characters."
NO_SUCH_CLIENT = "ERR No such client"
BAD_CLIENT_ID = "ERR client-id should be greater than 0"


# Greeting and password


@command(
    "PING",
    arity=-1,
    flags="fast",
    group="connection",
    summary="Returns the server's liveliness response.",
    syntax="[message]",
)
def ping(ctx: Context, args: Args) -> object:
    """Answers PONG, or the message as a bulk string."""
    if args.remaining > 1:
        raise wrong_arity("ping")
    return args.take() if args.remaining else Simple(b"PONG")


@command(
    "ECHO",
    arity=2,
    flags="fast loading stale",
    group="connection",
    summary="Returns the given string.",
    syntax="message",
)
def echo(ctx: Context, args: Args) -> object:
    return args.take()


@command(
    "QUIT",
    arity=-1,
    flags="fast loading stale noscript no_auth allow_busy",
    group="connection",
    summary="Closes the connection.",
)
def quit_(ctx: Context, args: Args) -> object:
    """Answers OK and closes the connection once the answer is sent."""
    ctx.session.close_after_reply = True
    return OK


@command(
    "RESET",
    arity=1,
    flags="fast loading stale noscript no_auth allow_busy",
    group="connection",
    summary="Resets the connection.",
)
def reset(ctx: Context, args: Args) -> object:
    """Back to how the connection began: RESP2, database 0, no name, and not authenticated where a
    password is required. The client library's name stays."""
    session = ctx.session
    session.db_index = 0
    session.resp = 2
    session.name = b""
    session.no_evict = False
    session.no_touch = False
    session.authenticated = not ctx.server.password_required()
    return Simple(b"RESET")


def _authenticate(ctx: Context, user: bytes, password: bytes) -> None:
    if user != DEFAULT_USER or not ctx.server.password_matches(password):
        raise CommandError(WRONG_PASSWORD)
    ctx.session.authenticated = True


@command(
    "AUTH",
    arity=-2,
    flags="fast loading stale noscript no_auth allow_busy",
    group="connection",
    summary="Authenticates the connection.",
    syntax="[username] password",
)
def auth(ctx: Context, args: Args) -> object:
    """The one user is `default`, its password the directive `requirepass`."""
    words = args.rest()
    if len(words) > 2:
        raise CommandError(SYNTAX)
    if len(words) == 1 and not ctx.server.password_required():
        raise CommandError(NO_PASSWORD_SET)
    user = words[0] if len(words) == 2 else DEFAULT_USER
    _authenticate(ctx, user, words[-1])
    return OK


def _take_protocol(args: Args) -> int:
    try:
        version = args.take_int()
    except CommandError:
        raise CommandError("ERR Protocol version is not an integer or out of range") from None
    if version not in (2, 3):
        raise CommandError("NOPROTO unsupported protocol version")
    return version


@command(
    "HELLO",
    arity=-1,
    flags="fast loading stale noscript no_auth allow_busy",
    group="connection",
    summary="Handshakes with the server.",
    syntax="[protover [AUTH username password] [SETNAME clientname]]",
)
def hello(ctx: Context, args: Args) -> object:
    """Answers a map of the server's properties; `protover` 2 or 3 chooses the protocol of this
    reply and all that follow."""
    session = ctx.session
    version = _take_protocol(args) if args.remaining else session.resp
    credentials: tuple[bytes, bytes] | None = None
    name: bytes | None = None
    while args.remaining:
        option = args.take()
        if option.upper() == b"AUTH" and args.remaining >= 2:
            credentials = args.take(), args.take()
        elif option.upper() == b"SETNAME" and args.remaining:
            name = _checked_name(args.take())
        else:
            raise CommandError(f"ERR Syntax error in HELLO option '{shown(option)}'")
    if credentials is not None:
        _authenticate(ctx, *credentials)
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
        b"mode": b"standalone",
        b"role": b"master",
        b"modules": [],
    }


@command(
    "SELECT",
    arity=2,
    flags="fast loading stale",
    group="connection",
    summary="Changes the selected database.",
    syntax="index",
)
def select(ctx: Context, args: Args) -> object:
    index = args.take_int()
    if not 0 <= index < len(ctx.keyspace.databases):
        raise CommandError("ERR DB index is out of range")
    ctx.session.db_index = index
    return OK


# CLIENT

container("CLIENT", group="connection", summary="A container for client connection commands.")


def _is_plain(text: bytes) -> bool:
    """Only printable ASCII without the space: such a text cannot break CLIENT LIST's lines."""
    return all(0x21 <= byte <= 0x7E for byte in text)


def _checked_name(name: bytes) -> bytes:
    if not _is_plain(name):
        raise CommandError(BAD_NAME)
    return name


@command(
    "CLIENT|ID",
    arity=2,
    flags="noscript loading stale",
    group="connection",
    summary="Returns the unique client ID of the connection.",
)
def client_id(ctx: Context, args: Args) -> object:
    return ctx.session.id


@command(
    "CLIENT|SETNAME",
    arity=3,
    flags="noscript loading stale",
    group="connection",
    summary="Sets the connection name.",
    syntax="connection-name",
)
def client_setname(ctx: Context, args: Args) -> object:
    """An empty name takes the name away."""
    ctx.session.name = _checked_name(args.take())
    return OK


@command(
    "CLIENT|GETNAME",
    arity=2,
    flags="noscript loading stale",
    group="connection",
    summary="Returns the name of the connection.",
)
def client_getname(ctx: Context, args: Args) -> object:
    return ctx.session.name or None


@command(
    "CLIENT|SETINFO",
    arity=4,
    flags="noscript loading stale",
    group="connection",
    summary="Sets information specific to the client or connection.",
    syntax="<LIB-NAME libname | LIB-VER libver>",
)
def client_setinfo(ctx: Context, args: Args) -> object:
    attribute, value = args.take(), args.take()
    known = attribute.lower()
    if known not in (b"lib-name", b"lib-ver"):
        raise CommandError(f"ERR Unrecognized option '{attribute.decode('utf-8', 'replace')}'")
    if not _is_plain(value):
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


@command(
    "CLIENT|NO-EVICT",
    arity=3,
    flags="admin noscript loading stale",
    group="connection",
    summary="Sets the client eviction mode of the connection.",
    syntax="<ON | OFF>",
)
def client_no_evict(ctx: Context, args: Args) -> object:
    """Kept and shown by CLIENT LIST; clients are never evicted."""
    ctx.session.no_evict = _take_switch(args)
    return OK


@command(
    "CLIENT|NO-TOUCH",
    arity=3,
    flags="noscript loading stale",
    group="connection",
    summary="Controls whether commands sent by the client affect the LRU/LFU of accessed keys.",
    syntax="<ON | OFF>",
)
def client_no_touch(ctx: Context, args: Args) -> object:
    """Kept and shown by CLIENT LIST; keys have no access times."""
    ctx.session.no_touch = _take_switch(args)
    return OK


def _flags(client: Client) -> str:
    """Redis' letters in Redis' order; N when there is none."""
    letters = (
        (client.blocked, "b"),
        (client.close_after_reply, "c"),
        (client.no_evict, "e"),
        (client.no_touch, "T"),
    )
    return "".join(letter for held, letter in letters if held) or "N"


def client_line(client: Client, now_ms: int) -> str:
    """One line of CLIENT LIST, without its line end."""
    output, query = client.output_bytes, client.query_buffer_bytes
    fields = (
        ("id", client.id),
        ("addr", client.address),
        ("laddr", client.local_address),
        ("fd", 0),
        ("name", client.name.decode("ascii", "replace")),
        ("age", max(0, now_ms - client.created_ms) // 1000),
        ("idle", max(0, now_ms - client.last_active_ms) // 1000),
        ("flags", _flags(client)),
        ("db", client.db_index),
        ("sub", 0),
        ("psub", 0),
        ("ssub", 0),
        ("multi", -1),
        ("watch", 0),
        ("qbuf", query),
        ("qbuf-free", 0),
        ("argv-mem", 0),
        ("multi-mem", 0),
        ("rbs", 0),
        ("rbp", 0),
        ("obl", 0),
        ("oll", 1 if output else 0),
        ("omem", output),
        ("tot-mem", output + query),
        ("events", "rw" if output else "r"),
        ("cmd", client.last_command or "NULL"),
        ("user", DEFAULT_USER.decode()),
        ("redir", -1),
        ("resp", client.resp),
        ("lib-name", client.lib_name.decode("ascii", "replace")),
        ("lib-ver", client.lib_version.decode("ascii", "replace")),
    )
    return " ".join(f"{name}={value}" for name, value in fields)


def _client_text(clients: Iterable[Client], now_ms: int) -> Verbatim:
    text = "".join(client_line(client, now_ms) + "\n" for client in clients)
    return Verbatim(text.encode())


@command(
    "CLIENT|INFO",
    arity=2,
    flags="noscript loading stale",
    group="connection",
    summary="Returns information about the connection.",
)
def client_info(ctx: Context, args: Args) -> object:
    return _client_text([ctx.server.clients[ctx.session.id]], ctx.now_ms)


CLIENT_TYPES = {b"normal": "normal", b"master": "master", b"pubsub": "pubsub"} | dict.fromkeys(
    (b"replica", b"slave"), "replica"
)


def _take_type(args: Args) -> str:
    word = args.take()
    found = CLIENT_TYPES.get(word.lower())
    if found is None:
        raise CommandError(f"ERR Unknown client type '{word.decode('utf-8', 'replace')}'")
    return found


@command(
    "CLIENT|LIST",
    arity=-2,
    flags="admin noscript loading stale",
    group="connection",
    summary="Lists open connections.",
    syntax="[TYPE <NORMAL | MASTER | REPLICA | PUBSUB>] [ID client-id [client-id ...]]",
    complexity="O(N), N the number of connections",
)
def client_list(ctx: Context, args: Args) -> object:
    """A line of `name=value` pairs for each connection, oldest first, as text."""
    clients = ctx.server.clients
    chosen: list[Client] = list(clients.values())
    if args.remaining >= 2 and args.option(b"TYPE"):
        chosen = chosen if _take_type(args) == "normal" else []
    elif args.remaining >= 2 and args.option(b"ID"):
        ids = [_take_listed_id(args) for _ in range(args.remaining)]
        chosen = [clients[id_] for id_ in ids if id_ in clients]
    args.finish()
    return _client_text(chosen, ctx.now_ms)


def _take_listed_id(args: Args) -> int:
    try:
        return args.take_int()
    except CommandError:
        raise CommandError("ERR Invalid client ID") from None


Filter = Callable[["Client"], bool]


def _id_filter(args: Args) -> Filter:
    try:
        wanted = args.take_int()
    except CommandError:
        raise CommandError(BAD_CLIENT_ID) from None
    if wanted < 1:
        raise CommandError(BAD_CLIENT_ID)
    return lambda client: client.id == wanted


def _user_filter(args: Args) -> Filter:
    user = args.take()
    if user != DEFAULT_USER:
        raise CommandError(f"ERR No such user '{user.decode('utf-8', 'replace')}'")
    return lambda client: True


def _age_filter(args: Args, now_ms: int) -> Filter:
    try:
        age_s = args.take_int()
    except CommandError:
        raise CommandError("ERR maxage is not an integer or out of range") from None
    if age_s < 1:
        raise CommandError("ERR maxage should be greater than 0")
    return lambda client: (now_ms - client.created_ms) // 1000 >= age_s


def _kill_filter(option: bytes, args: Args, now_ms: int) -> Filter:
    if option == b"ID":
        return _id_filter(args)
    if option == b"TYPE":
        normal = _take_type(args) == "normal"
        return lambda client: normal
    if option == b"USER":
        return _user_filter(args)
    if option == b"MAXAGE":
        return _age_filter(args, now_ms)
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


def _kill(ctx: Context, chosen: list[Client]) -> None:
    for client in chosen:
        if client.id == ctx.session.id:
            ctx.session.close_after_reply = True
        else:
            ctx.server.kill_client(client)


@command(
    "CLIENT|KILL",
    arity=-3,
    flags="admin noscript loading stale",
    group="connection",
    summary="Terminates open connections.",
    syntax="<ip:port | <ID client-id | TYPE <NORMAL | MASTER | REPLICA | PUBSUB> | USER username "
    "| ADDR ip:port | LADDR ip:port | SKIPME <YES | NO> | MAXAGE maxage> ...>",
    complexity="O(N), N the number of connections",
)
def client_kill(ctx: Context, args: Args) -> object:
    """With an address alone: OK, or an error when there is no such client. With options: the
    number of clients killed, those that match all options. SKIPME YES (default) spares the
    caller."""
    clients = list(ctx.server.clients.values())
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
            matches = _kill_filter(option, args, ctx.now_ms)
            clients = [client for client in clients if matches(client)]
    args.finish()
    if skip_me:
        clients = [client for client in clients if client.id != ctx.session.id]
    _kill(ctx, clients)
    return len(clients)
