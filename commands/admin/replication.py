"""Replicas: choosing a primary, the requests of a link, and waiting for replicas and disks.

server/replication carries out the requests of a link; this module has their syntax and error texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from millstream.commands.access.users import User
from millstream.commands.access.verdict import denial
from millstream.commands.runtime.arguments import Args, parse_integer, take_timeout
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import NO_REPLY, OK, BlockedRead, Simple, Wait
from millstream.commands.table.registry import COMMANDS, CommandGroup
from millstream.errors import NOT_INTEGER, SYNTAX, CommandError
from millstream.host_names import check_host

command = CommandGroup("server")
generic_command = CommandGroup("generic", "@connection")

INVALID_PORT = "ERR Invalid master port"
AOF_OFF = "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled."
PROMOTING = "ERR this server is a replica until the last frames of its primary have arrived"
NOT_PROMOTED = (
    "ERR this server remains a replica: another primary was chosen, or its data may be wrong; the "
    "log says why"
)
ON_REPLICA = (
    "ERR {} cannot be used with replica instances. Please also note that writes to replicas are "
    "just local and are not propagated."
)


class Takeover:
    """The request of a primary to its replica to take over: its newest history, and whether the
    replica shall do so even if it lacks frames."""

    def __init__(
        self,
        history: bytes,
        is_forced: bool,
    ) -> None:
        self.history = history
        self.is_forced = is_forced


class Acknowledged:
    """A replica's acknowledgement: the last frame applied, the last one on its disk, the size of
    all frames applied, and the term of its primary (0: it is in no shard)."""

    def __init__(
        self,
        applied: int,
        synced: int,
        frame_bytes: int,
        term: int,
    ) -> None:
        self.applied = applied
        self.synced = synced
        self.frame_bytes = frame_bytes
        self.term = term


if TYPE_CHECKING:

    class Progress(Protocol):
        """The frames that replicas have."""

        def ask_positions(self) -> None:
            """Asks the replicas that do not acknowledge everything at once."""

        def applied_on(self, seq: int) -> int:
            """The number of replicas that have applied this frame."""

        def synced_on(self, seq: int) -> int:
            """The number of replicas that have this frame on their disks."""

    class ReplicaRequests(Protocol):
        """The requests of replicas."""

        def introduce(self, client: Any, pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
            """Stores the properties that a replica reports, and returns the answer; CommandError
            for unknown ones."""

        def acknowledge(self, client: Any, told: Acknowledged) -> None:
            """Stores the frames that a replica has. No effect if the client is not a replica."""

        def is_redis(self, client: Any) -> bool:
            """True unless the client has said that it is a millstream server."""

        def sync(self, client: Any, position: tuple[bytes, int] | None) -> None:
            """Begins to send the data of this moment to a program that acts as a replica of Redis,
            and then commands, unless it wants only an RDB. With PSYNC it has the ID of a stream,
            and the offset of the next byte, from which on commands may be enough; None: it has used
            SYNC."""

        def acknowledge_offset(self, client: Any, offset: int) -> None:
            """Stores the offset up to which a Redis has applied its commands."""

        def psync(self, client: Any, next_seq: int, takeover: Takeover | None) -> None:
            """Begins to send frames to a replica, from this number on; with `takeover`, it asks
            this server to become the primary."""

    class Failover(Protocol):
        """Changing roles with a replica."""

        def begin(self, target: tuple[str, int] | None, forced: bool, timeout_ms: int) -> None:
            """Begins a failover; CommandError when that is impossible. `timeout_ms` 0: no limit."""

        def abort(self) -> None:
            """Cancels the failover; CommandError when there is none."""

    class Role(Progress, ReplicaRequests, Protocol):
        """This server as a primary or a replica (server/replication)."""

        @property
        def is_replica(self) -> bool: ...
        @property
        def is_promoting(self) -> bool:
            """True if this server becomes a primary as soon as the last frames of its primary have
            arrived."""

        @property
        def failover(self) -> Failover: ...

        def follow(self, host: str, port: int) -> str:
            """Becomes a replica of the server at this address; Redis' reply."""

        def no_primary(self, is_independent: bool) -> None:
            """Becomes a primary, at once or when the last frames of its primary have arrived;
            `is_independent`: at once, and the primary remains one."""

        def role_reply(self) -> list[Any]:
            """The reply to ROLE."""


class FrameWaits(Protocol):
    """The clients that wait for frames on a disk (server/durability/frame_waits)."""

    def add(self, wait: PositionWait) -> None: ...
    def remove(self, client_id: int) -> None: ...

    def write_position(self) -> int:
        """The frame with the last change by the client of the running command."""

    @property
    def synced_seq(self) -> int:
        """The last frame that is on the disk, or will be before any reply is sent."""

    def sync_soon(self) -> None:
        """Forces the journal to disk soon."""


if TYPE_CHECKING:

    class JournalDirective(Protocol):
        appendonly: bool

    class ReplicationHost(Protocol):
        @property
        def replication(self) -> Role: ...
        @property
        def waits(self) -> FrameWaits: ...
        @property
        def config(self) -> JournalDirective: ...


# Choosing a primary


@command(
    "REPLICAOF <args: <host-port: <host> <port:integer>> | <no-one: <NO> <ONE> [INDEPENDENT]>>",
    "admin noscript stale no_async_loading dataless audited",
    since="5.0.0",
)
def replicaof(ctx: Context[ReplicationHost], args: Args) -> object:
    """Configures a server as replica of another, or promotes it to a master.

    The reply is OK. The server becomes a replica of the primary at this host and port, which may be
    a Redis or Valkey: its data becomes that of the primary, and writes are refused. Repeating the
    current address lets a full sync replace more data with less.

    NO ONE makes a replica the primary. While the link to its primary is up, that refuses writes,
    sends its last frames and becomes a replica of this server; the reply is sent when this server
    has the frames. A server with appendonly off refuses that. With INDEPENDENT, this server becomes
    a second primary at once, with the data that it has, and the other one is not changed.
    """
    if ctx.keyspace.clustered:
        raise CommandError("ERR REPLICAOF not allowed in cluster mode.")
    host, port = args.take(), args.take()
    role = ctx.server.replication
    if host.upper() == b"NO" and port.upper() == b"ONE":
        is_independent = args.option(b"INDEPENDENT")
        args.finish()
        role.no_primary(is_independent)
        return _begin(ctx, PromotionWait(ctx), 0) if ctx.may_block and role.is_promoting else OK
    args.finish()
    port_number = parse_integer(port)
    if port_number is None or not 0 < port_number < 65536:
        raise CommandError(INVALID_PORT)
    name = host.decode("utf-8", "replace")
    try:
        check_host(name)
    except ValueError as error:
        raise CommandError(f"ERR Invalid master host: {error}") from None
    return Simple(role.follow(name, port_number).encode())


@command(
    "SLAVEOF <args: <host-port: <host> <port:integer>> | <no-one: <NO> <ONE> [INDEPENDENT]>>",
    "admin noscript stale no_async_loading dataless audited",
)
def slaveof(ctx: Context[ReplicationHost], args: Args) -> object:
    """Sets a Redis server as a replica of another, or promotes it to being a master.

    This is the older name of [REPLICAOF](replicaof.md)."""
    return replicaof(ctx, args)


@command("ROLE", "noscript loading stale fast dataless @admin @dangerous", since="2.8.12")
def role(ctx: Context[ReplicationHost], args: Args) -> object:
    """Returns the replication role.

    On a primary, [master, offset, replicas], with [address, port, offset] for each replica. On a
    replica, [slave, address, port, state, offset] for its primary; the state is connect,
    connecting, sync or connected. Offsets count the bytes of all journal frames so far.
    """
    return ctx.server.replication.role_reply()


@command(
    "FAILOVER [{target: TO host port:integer [FORCE]}] [ABORT] [TIMEOUT milliseconds]",
    "admin noscript stale dataless audited",
    since="6.2.0",
)
def failover(ctx: Context[ReplicationHost], args: Args) -> object:
    """Starts a coordinated failover from a server to one of its replicas.

    The reply is OK. Then this primary and a replica swap roles: writes are held back until the
    replica has everything, the replica becomes the primary, and this server follows it.
    `master_failover_state` in INFO shows the progress. Without TO, the first replica that has
    everything is chosen. After TIMEOUT, the failover is abandoned or, with FORCE, the replica
    becomes the primary even if it lacks frames. ABORT abandons the failover. `repl_last_error` in
    INFO then gives the reason.
    """
    if ctx.keyspace.clustered:
        raise CommandError(
            "ERR FAILOVER not allowed in cluster mode. Use CLUSTER FAILOVER command instead."
        )
    failover = ctx.server.replication.failover
    words = args.rest()
    if len(words) == 1 and words[0].upper() == b"ABORT":
        failover.abort()
        return OK
    failover.begin(*_failover_options(words))
    return OK


def _failover_options(words: list[bytes]) -> tuple[tuple[str, int] | None, bool, int]:
    """The target, whether it is forced, and the timeout in milliseconds."""
    target: tuple[str, int] | None = None
    forced, timeout_ms = False, 0
    left = iter(words)
    for word in left:
        name = word.upper()
        if name == b"TIMEOUT" and not timeout_ms:
            timeout_ms = _option_number(next(left, None))
            if timeout_ms <= 0:
                raise CommandError("ERR FAILOVER timeout must be greater than 0")
        elif name == b"TO" and target is None:
            host, port = next(left, None), _option_number(next(left, None))
            assert host is not None  # a word follows it
            target = host.decode("utf-8", "replace"), port
        elif name == b"FORCE" and not forced:
            forced = True
        else:
            raise CommandError(SYNTAX)
    return target, forced, timeout_ms


def _option_number(word: bytes | None) -> int:
    if word is None:
        raise CommandError(SYNTAX)
    number = parse_integer(word)
    if number is None:
        raise CommandError(NOT_INTEGER)
    return number


# The requests of a link


@command("REPLCONF", "admin noscript loading stale allow_busy dataless", since="3.0.0", arity=-1)
def replconf(ctx: Context[ReplicationHost], args: Args) -> object:
    """An internal command for configuring the replication stream.

    Sent by replicas: their address and capabilities (listening-port, ip-address, capa, version,
    databases, histories, rdb-only, rdb-filter-only), and later the last frame applied (ACK), the
    last frame on disk (FACK), and the size of all frames applied (OFFSET); a Redis sends ACK with
    its offset. A member of a shard names its node and the term of its primary. A replica also tells
    its primary that it is being promoted (promoting 1, or 0 when it remains a replica), and that it
    was (promoted 1; once more on a new connection, with the last frame on its disk); that needs the
    permission to use PSYNC.
    """
    words = args.rest()
    if len(words) % 2:
        raise CommandError(SYNTAX)
    pairs = list(zip(words[::2], words[1::2], strict=True))
    if any(name.lower() == b"promoted" for name, _ in pairs):
        _require_psync(ctx.session.user)
    if pairs and pairs[0][0].upper() == b"ACK":
        if ctx.session.feed is not None and ctx.server.replication.is_redis(ctx.session):
            ctx.server.replication.acknowledge_offset(ctx.session, _offset(pairs[0][1]))
            return NO_REPLY
        ctx.server.replication.acknowledge(ctx.session, _acknowledged(pairs))
        return NO_REPLY
    answer = ctx.server.replication.introduce(ctx.session, pairs)
    return Simple(answer) if ctx.session.feed is None else NO_REPLY


def _require_psync(user: User | None) -> None:
    """The server follows one that was promoted. So a client needs the right to be its replica,
    also where it may use REPLCONF. CommandError without it."""
    lacking = None if user is None else denial(user, COMMANDS[b"psync"], [b"PSYNC", b"?", b"1"])
    if lacking is not None:
        raise lacking.error()


def _offset(text: bytes) -> int:
    offset = parse_integer(text)
    if offset is None:
        raise CommandError(NOT_INTEGER)
    return offset


def _acknowledged(pairs: list[tuple[bytes, bytes]]) -> Acknowledged:
    """The numbers of ACK, FACK, OFFSET and TERM."""
    told = {name.upper(): text for name, text in pairs}
    try:
        term = int(told.get(b"TERM", b"0"))
        return Acknowledged(int(told[b"ACK"]), int(told[b"FACK"]), int(told[b"OFFSET"]), term)
    except (KeyError, ValueError):
        raise CommandError(SYNTAX) from None


@command(
    "PSYNC replicationid offset",
    "admin noscript stale no_async_loading no_multi dataless",
    since="2.8.0",
    arity=-3,
)
def psync(ctx: Context[ReplicationHost], args: Args) -> object:
    """An internal command used in replication.

    Sent by replicas: the history, and the number of the frame that they need next. The frames
    follow, preceded by a base if they are not sufficient. With FAILOVER, sent by this replica's own
    primary, the replica becomes the primary first, unless it lacks frames; with FORCE it does in
    any case. A Redis, and a program that acts as one, names the ID of its stream and the offset of
    the next byte. It gets the commands after that position, or an RDB, as for [SYNC](sync.md).
    """
    name = args.take()
    next_seq = args.take_int()
    takeover = Takeover(name, args.option(b"FORCE")) if args.option(b"FAILOVER") else None
    args.finish()
    if takeover is None and ctx.server.replication.is_redis(ctx.session):
        ctx.server.replication.sync(ctx.session, (name, next_seq))
        return NO_REPLY
    if next_seq < 1:
        raise CommandError("ERR the number of a frame is 1 or more")
    ctx.server.replication.psync(ctx.session, next_seq, takeover)
    return NO_REPLY


@command("SYNC", "admin noscript no_async_loading no_multi dataless")
def sync(ctx: Context[ReplicationHost], args: Args) -> object:
    """An internal command used in replication.

    Sent by programs that want the data of this moment, such as `redis-cli --rdb`. There is no
    reply, but `$`, the size of an RDB, and the RDB. `REPLCONF version` names the Redis that has to
    load it; the default is `replica-redis-version`. Then this server closes the connection after
    `REPLCONF rdb-only 1`, or sends each change as commands of Redis 7.0.
    """
    ctx.server.replication.sync(ctx.session, None)
    return NO_REPLY


# Waiting for replicas and for the disk


def _take_deadline(ctx: Context, args: Args) -> int:
    """The moment a timeout in milliseconds ends at; 0 for never."""
    timeout_ms = take_timeout(args)
    return ctx.steady_ms + timeout_ms if timeout_ms else 0


class PositionWait(BlockedRead):
    """A wait for a frame, until `is_over` or the timeout. The server checks its `waits` whenever
    more frames are on its disk, or a replica has acknowledged something."""

    def __init__(self, ctx: Context[ReplicationHost], seq: int) -> None:
        self.host = ctx.server
        self.keys = []
        self.client_id = ctx.session.id
        self.seq = seq

    def is_over(self) -> bool:
        raise NotImplementedError

    def ended(self, ctx: Context[ReplicationHost]) -> None:
        ctx.server.waits.remove(self.client_id)


def _begin(ctx: Context[ReplicationHost], waiting: PositionWait, deadline_ms: int) -> object:
    """Return the Wait, or the reply if it is already over or waiting is not allowed (EXEC)."""
    if not ctx.may_block or waiting.is_over():
        return waiting.timeout_reply(ctx)
    ctx.server.waits.add(waiting)
    return Wait(waiting, deadline_ms)


class PromotionWait(PositionWait):
    """REPLICAOF NO ONE: until this server is a primary."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx, 0)

    def is_over(self) -> bool:
        return not self.host.replication.is_promoting

    def timeout_reply(self, ctx: Context[ReplicationHost]) -> object:
        if not ctx.server.replication.is_replica:
            return OK
        return CommandError(PROMOTING if ctx.server.replication.is_promoting else NOT_PROMOTED)


class ReplicasWait(PositionWait):
    """WAIT: until enough replicas have applied the frame."""

    def __init__(self, ctx: Context, seq: int, wanted: int) -> None:
        super().__init__(ctx, seq)
        self.wanted = wanted

    def is_over(self) -> bool:
        return self.host.replication.applied_on(self.seq) >= self.wanted

    def timeout_reply(self, ctx: Context[ReplicationHost]) -> object:
        return ctx.server.replication.applied_on(self.seq)


@generic_command(
    "WAIT numreplicas timeout",
    "blocking dataless request_policy:all_shards response_policy:agg_min",
    since="3.0.0",
)
def wait(ctx: Context[ReplicationHost], args: Args) -> object:
    """Blocks until the asynchronous replication of all preceding write commands sent by the
    connection is completed.

    The reply is the number of replicas that have applied everything that this connection has
    changed. The reply is sent when `numreplicas` of them have, or after `timeout` (milliseconds; 0:
    never). In a transaction, it is sent immediately.
    """
    wanted = args.take_int()
    deadline_ms = _take_deadline(ctx, args)
    _refuse_on_replica(ctx, "WAIT")
    ctx.server.replication.ask_positions()
    return _begin(ctx, ReplicasWait(ctx, ctx.server.waits.write_position(), wanted), deadline_ms)


def _refuse_on_replica(ctx: Context[ReplicationHost], name: str) -> None:
    if ctx.server.replication.is_replica:
        raise CommandError(ON_REPLICA.format(name))


class SyncWait(PositionWait):
    """WAITAOF: until the frame is on the disk here, if `local`, and on those of enough replicas."""

    def __init__(self, ctx: Context, seq: int, local: int, replicas: int) -> None:
        super().__init__(ctx, seq)
        self.local = local
        self.replicas = replicas

    def is_over(self) -> bool:
        host = self.host
        if self.local and not host.config.appendonly:
            return True  # CONFIG SET appendonly no
        is_local = not self.local or host.waits.synced_seq >= self.seq
        return is_local and host.replication.synced_on(self.seq) >= self.replicas

    def timeout_reply(self, ctx: Context) -> object:
        host = self.host
        if self.local and not host.config.appendonly:
            return CommandError(AOF_OFF)
        is_local = host.config.appendonly and host.waits.synced_seq >= self.seq
        return [int(is_local), host.replication.synced_on(self.seq)]


@generic_command(
    "WAITAOF numlocal numreplicas timeout",
    "blocking dataless request_policy:all_shards response_policy:agg_min",
    since="7.2.0",
)
def waitaof(ctx: Context[ReplicationHost], args: Args) -> object:
    """Blocks until all of the preceding write commands sent by the connection are written
    to the append-only file of the master and/or replicas.

    The reply is [local, replicas]: 1 if everything that this connection has changed is on this
    server's disk (else 0), and the number of replicas that have it on disk, regardless of
    appendfsync. The reply is sent when these reach `numlocal` (0 or 1) and `numreplicas`, or after
    `timeout` (milliseconds; 0: never). In a transaction, it is sent immediately. With numlocal 1,
    `CONFIG SET appendonly no` ends the wait with an error.
    """
    local = args.take_int()
    if not 0 <= local <= 1:
        raise CommandError("ERR value is out of range, value must between 0 and 1")
    replicas = args.take_int()
    if replicas < 0:
        raise CommandError("ERR value is out of range, must be positive")
    deadline_ms = _take_deadline(ctx, args)
    _refuse_on_replica(ctx, "WAITAOF")
    if local and not ctx.server.config.appendonly:
        raise CommandError(AOF_OFF)
    waiting = SyncWait(ctx, ctx.server.waits.write_position(), local, replicas)
    reply = _begin(ctx, waiting, deadline_ms)
    if local and isinstance(reply, Wait):
        ctx.server.waits.sync_soon()
    return reply
