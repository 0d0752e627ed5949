"""The server's directives: one table for the configuration file, the command line and CONFIG.

The table is the class `Config`: an attribute is a directive (``_`` for ``-``) with its parser, text
form, bounds and description. A directive therefore cannot exist in one place and be missing in
another. Those of TLS, of the metrics and of a cluster, and those without effect, are attributes of
parts of a `Config`. docs/configuration.md is generated from the table. Unknown directives are
refused; server/config/ignored_directives lists the directives that are accepted without effect.

`Config` is not a dataclass: to make one of 200 fields took an eighth of the time of a start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from millstream.errors import CommandError
from millstream.glob import matcher
from millstream.server.config.apply import (
    READ,
    client_limits,
    crash_log,
    default_channels,
    default_password,
    denial_log_length,
    group_fsync,
    journal,
    keyspace_events,
    log_style,
    memory_limit,
    of_keyspace,
    of_nodes,
    of_parking,
    of_requests,
    output_limits,
    queue_limit,
    refused_writes,
    slow_commands,
    slowlog_length,
)
from millstream.server.config.cluster_directives import ClusterDirectives
from millstream.server.config.ignored_directives import ACCEPTED, ALIASES, HIDDEN, Form
from millstream.server.config.kinds import (
    ADDRESSES,
    COMPATIBILITY,
    EVENTS,
    FOREGROUND,
    INT32_MAX,
    INT64_MAX,
    LIMITS,
    MEGABYTE,
    OUTPUT_LIMITS,
    PATH,
    PERCENTILES,
    REPLICAS,
    SAVE_POINTS,
    SAVE_POINTS_DEFAULT,
    SECRET,
    SIZE_OR_SHARE,
    TEXT,
    USER_LIMITS,
    YES_NO,
    Directive,
    Kind,
    OutputLimits,
    UserLimits,
    clipped,
    data,
    integer,
    limits,
    log,
    network,
    one_of,
    size,
    streams,
    watching,
)
from millstream.server.config.lines import Line, Sources
from millstream.server.config.metrics_directives import MetricsDirectives
from millstream.server.config.process_directives import ProcessDirectives
from millstream.server.config.replica_directives import ReplicaDirectives
from millstream.server.config.store_directives import GatewayDirectives, StoreDirectives
from millstream.server.config.tls_directives import TlsDirectives, UnixDirectives

# The table


FORMS = {
    "yes": YES_NO, "text": TEXT, "size": size(0), "hz": clipped(1, 500), "foreground": FOREGROUND,
}  # fmt: skip


def _kind_of(form: Form) -> Kind:
    if isinstance(form, tuple):
        return integer(*form)
    if isinstance(form, list):
        return one_of(*form)
    return FORMS[form]


class Accepted:
    """`Config.accepted`: the directives of server/config/ignored_directives."""

    PART = "accepted"


for _name, _written, _form, _mutable in ACCEPTED:
    _kind = _kind_of(_form)
    _row = Directive(
        _kind.parse(_written, None), _kind, "", COMPATIBILITY, READ if _mutable else None
    )
    _row.__set_name__(Accepted, _name.replace("-", "_"))
    setattr(Accepted, _row.attribute, _row)


class Config(ReplicaDirectives, ProcessDirectives):
    """All directives with their values; sizes in bytes."""

    unix: UnixDirectives
    tls: TlsDirectives
    metrics: MetricsDirectives
    cluster: ClusterDirectives
    gateway: GatewayDirectives
    accepted: Accepted

    port: int = network(
        6455, integer(0, 65535),
        "TCP port; 0 selects a free one, or none if there is `tls-port` or `unixsocket`",
    )  # fmt: skip
    bind: tuple[str, ...] = network(("127.0.0.1",), ADDRESSES, "addresses to listen on")
    protected_mode: bool = network(
        True, YES_NO, "without a password, serve only clients on this machine", apply=READ
    )
    requirepass: str = network(
        "", SECRET,
        "password of the user `default`; empty: no password is required", apply=default_password,
    )  # fmt: skip
    aclfile: str = network(
        "", TEXT,
        "file of users, for ACL LOAD and ACL SAVE; empty: users are lines `user NAME RULE ...` in "
        "the configuration file",
    )  # fmt: skip
    acl_pubsub_default: str = network(
        "resetchannels", one_of("allchannels", "resetchannels"),
        "channels that new users may use: all or none", apply=default_channels,
    )  # fmt: skip
    acllog_max_len: int = network(
        128, integer(0, INT64_MAX), "number of entries that ACL LOG keeps", apply=denial_log_length
    )
    tcp_backlog: int = network(
        511, integer(1, INT32_MAX), "maximum number of connections waiting to be accepted"
    )
    tcp_keepalive: int = network(
        300, integer(0, INT32_MAX), "seconds between TCP keepalives; 0: none", apply=READ
    )
    timeout: int = network(
        0, integer(0, INT32_MAX), "close clients idle for this many seconds; 0: never", apply=READ
    )
    maxclients: int = network(10000, integer(1, INT32_MAX), "maximum number of clients", apply=READ)

    dir: Path = data(
        Path("data"), PATH, "directory of the data files; created if it does not exist"
    )
    appendonly: bool = data(True, YES_NO, "keep a journal of every change", apply=journal)
    appendfsync: str = data(
        "always", one_of("everysec", "always", "no"),
        "when the journal is forced to disk: `always`: before a reply is sent; `everysec`: once a "
        "second; `no`: when the operating system decides", apply=journal,
    )  # fmt: skip
    appendfsync_groups: str = data(
        "always", one_of("always", "everysec"),
        "under `appendfsync always`, when deliveries and acknowledgements are forced to disk: "
        "`always`: before a reply is sent, as appends are; `everysec`: within a second, so entries "
        "may be delivered again after a power failure", apply=group_fsync,
    )  # fmt: skip
    save: str | None = data(
        None,
        SAVE_POINTS,
        "take a snapshot after this many seconds if there were at least this many changes; empty: "
        f"never. If not set: `{SAVE_POINTS_DEFAULT}` without a journal, and never with a journal, "
        "because its rewriting does the same work",
        apply=refused_writes,
    )
    stop_writes_on_bgsave_error: bool = data(
        True, YES_NO,
        "with save points: refuse writes after a snapshot has failed, until one succeeds",
        apply=refused_writes,
    )  # fmt: skip
    rdbcompression: bool = data(
        False, YES_NO,
        "compress snapshots with zstd: files are a half to a third of the size, but saving takes "
        "several times as much CPU time and loading twice as long. Small streams are always "
        "compressed. Redis' default is yes", apply=READ,
    )  # fmt: skip
    aof_load_truncated: bool = data(
        True, YES_NO,
        "a journal that ends in an unfinished write, as a crash leaves it: cut it off at start and "
        "log that (yes), or do not start (no)", apply=READ,
    )  # fmt: skip
    journal_reserve_size: int = data(
        16 * MEGABYTE, size(0, 1024 * MEGABYTE),
        "disk space reserved in advance for the journal, so that on a full disk writes are refused "
        "before they run; 0: none", apply=READ,
    )  # fmt: skip
    journal_queue_limit: int = data(
        64 * MEGABYTE, size(1),
        "maximum memory for data that waits for a slow disk: frames to be written to the journal, "
        "and replies held until they are durable; above it, requests wait until half of it is free",
        apply=queue_limit,
    )  # fmt: skip
    auto_aof_rewrite_percentage: int = data(
        100, integer(0, INT32_MAX),
        "rewrite the journal when it has grown by this percentage of its size after the last "
        "rewrite; 0: never", apply=READ,
    )  # fmt: skip
    auto_aof_rewrite_min_size: int = data(
        64 * MEGABYTE, size(0),
        "minimum size of a journal that is rewritten automatically", apply=READ,
    )  # fmt: skip

    databases: int = data(16, integer(1, 10000), "number of databases for SELECT")
    disable_thp: bool = data(
        False, YES_NO, "do not use huge pages; without forks, they are not expensive here"
    )

    proto_max_bulk_len: int = limits(
        512 * MEGABYTE, size(MEGABYTE),
        "longest single argument of a request", apply=of_requests("bulk_bytes"),
    )  # fmt: skip
    client_query_buffer_limit: int = limits(
        1024 * MEGABYTE, size(MEGABYTE),
        "longest request; a client that sends a longer one is disconnected",
        apply=of_requests("query_bytes"),
    )  # fmt: skip
    client_output_buffer_limit: OutputLimits = limits(
        dict(OUTPUT_LIMITS), LIMITS,
        "for each class of clients: disconnect a client that has this much unsent output, or that "
        "exceeds the soft limit for this many seconds; 0: no limit", apply=output_limits,
    )  # fmt: skip
    maxmemory_clients: str = limits(
        "0", SIZE_OR_SHARE,
        "maximum memory of all clients together, or a percentage of maxmemory; above it, those "
        "that take most are disconnected. Replicas do not count, and CLIENT NO-EVICT exempts a "
        "client. 0: no limit", apply=client_limits,
    )  # fmt: skip
    user_limits: UserLimits = limits(
        {}, USER_LIMITS,
        "for each user, or `*` for each one that is not named: the maximum number of its "
        "connections, and the maximum memory of these; above it, those that take most are "
        "disconnected; 0: no limit. There may be several lines", apply=client_limits,
    )  # fmt: skip

    stream_node_max_bytes: int = streams(
        4096, size(0),
        "bytes in a node, the unit of `MAXLEN ~`; 0: only the limit of a block, 64 KB",
        apply=of_nodes("node_bytes"),
    )  # fmt: skip
    stream_node_max_entries: int = streams(
        100, integer(0, INT64_MAX),
        "entries in a node; 0: only the limit of a block, 4,096", apply=of_nodes("node_entries"),
    )  # fmt: skip
    stream_idmp_duration: int = streams(
        100, integer(1, 86400),
        "seconds for which a new stream remembers the IDs of idempotent producers",
        apply=of_keyspace("idmp_duration_s"),
    )  # fmt: skip
    stream_idmp_maxsize: int = streams(
        100, integer(1, 10000),
        "number of IDs of each producer that a new stream remembers",
        apply=of_keyspace("idmp_maxsize"),
    )  # fmt: skip
    stream_producers_max: int = streams(
        100_000, integer(1, 1_000_000),
        "number of producers whose last number a stream remembers (TAPPENDONCE); above that, it "
        "forgets the producer whose last append is oldest", apply=of_keyspace("producers_max"),
    )  # fmt: skip
    stream_held_max_bytes: int = streams(
        256 << 20, size(0),
        "bytes of entries that a stream holds while IDs below them are reserved; above that, "
        "appends are refused; 0: no limit", apply=of_keyspace("held_max_bytes"),
    )  # fmt: skip
    stream_reservations_max: int = streams(
        10_000, integer(1, 1_000_000),
        "number of IDs that can be reserved in a stream at a time (TRESERVE)",
        apply=of_keyspace("reservations_max"),
    )  # fmt: skip
    stream_writers_max: int = streams(
        1000, integer(1, 1_000_000),
        "number of writers that a stream remembers (TPOSITION); above that, it forgets the least "
        "recently used writer without reservations", apply=of_keyspace("writers_max"),
    )  # fmt: skip
    stream_scheduled_max: int = streams(
        1_000_000, integer(0, INT64_MAX),
        "number of entries that are scheduled in a stream at a time (TSCHEDULE); 0: no limit",
        apply=of_keyspace("scheduled_max"),
    )  # fmt: skip
    stream_scheduled_max_bytes: int = streams(
        256 << 20, size(0),
        "bytes of entries that are scheduled in a stream at a time; 0: no limit",
        apply=of_keyspace("scheduled_max_bytes"),
    )  # fmt: skip

    group_parked_max: int = streams(
        100_000, integer(1, 10_000_000),
        "number of entries that a group with an ORDER parks while their keys are busy; at the "
        "limit, the group reads no new entries", apply=of_parking,
    )  # fmt: skip

    loglevel: str = log(
        "notice", one_of("debug", "verbose", "notice", "warning", "nothing"),
        "how much is logged: `warning`: problems; `notice`: also states and what administrators "
        "do; `verbose`: also the beginning and end of each connection; `debug`: also details for "
        "developers", apply=log_style,
    )  # fmt: skip
    supervised: str = log(
        "no", one_of("no", "systemd", "auto"),
        "service manager to notify when the server is loading, ready, or stopping; `auto`: systemd "
        "if NOTIFY_SOCKET is set in the environment",
    )  # fmt: skip
    pidfile: str = log("", TEXT, "file with the process ID, while the server runs; empty: none")
    logfile: str = log("", TEXT, "log file; empty: standard output")
    log_format: str = log(
        "text", one_of("text", "json"),
        "one readable line, or one JSON object, per event", apply=log_style,
    )  # fmt: skip

    crash_log_enabled: bool = log(
        True, YES_NO,
        "after a crash, write the version, the last command and the stack of each thread to the "
        "log file, or to standard error if there is none", apply=crash_log,
    )  # fmt: skip

    slowlog_log_slower_than: int = watching(
        10000, integer(-1, INT64_MAX),
        "minimum microseconds for a command to enter the slow log; 0: all commands, -1: none",
        apply=slow_commands,
    )  # fmt: skip
    slowlog_max_len: int = watching(
        128, integer(0, INT64_MAX), "entries kept in the slow log", apply=slowlog_length
    )
    latency_monitor_threshold: int = watching(
        0, integer(0, INT64_MAX),
        "minimum milliseconds for an event to be recorded for LATENCY; 0: none",
        apply=slow_commands,
    )  # fmt: skip
    latency_tracking: bool = watching(
        True, YES_NO,
        "show each command's latencies in INFO latencystats and LATENCY HISTOGRAM", apply=READ,
    )  # fmt: skip
    latency_tracking_info_percentiles: tuple[float, ...] = watching(
        (50.0, 99.0, 99.9), PERCENTILES, "percentiles that INFO latencystats shows", apply=READ
    )
    notify_keyspace_events: str = watching(
        "", EVENTS,
        "which keyspace events are published: K and E choose the two kinds of channels, the other "
        "letters the classes of events, as in Redis; empty: none", apply=keyspace_events,
    )  # fmt: skip
    enable_debug_command: str = watching(
        "no", one_of("no", "yes", "local"),
        "which clients may use DEBUG: no: none; yes: all; local: clients on this machine",
    )  # fmt: skip
    maxmemory: int = limits(
        0, size(0),
        "maximum memory in bytes, compared with `used_memory` of INFO; 0: no limit. "
        "maxmemory-policy decides what happens above it", apply=memory_limit,
    )  # fmt: skip
    maxmemory_policy: str = limits(
        "noeviction", one_of("noeviction", "allstreams-oldest"),
        "above maxmemory, `noeviction` refuses commands that need memory (`OOM`); "
        "`allstreams-oldest` drops the oldest blocks of all streams, and refuses if no blocks are "
        "left. Redis' other policies remove whole keys, which does not suit streams, and are "
        "refused", apply=memory_limit,
    )  # fmt: skip

    # The lines `user NAME RULE ...` of the configuration file: no directive, since there are many.
    user_lines: list[Line]
    files_with_passwords: list[str]  # the configuration files that set one
    sources: Sources  # the configuration files that were read

    def __init__(self, **values: Any) -> None:
        """The defaults, except for these values by name, with `_` for `-`."""
        self.unix, self.tls = UnixDirectives(), TlsDirectives()
        self.metrics, self.accepted = MetricsDirectives(), Accepted()
        self.cluster, self.gateway = ClusterDirectives(), GatewayDirectives()
        self.user_lines = []
        self.files_with_passwords = []
        self.sources = {}
        for row in DIRECTIVES.values():
            row.set_in(self, row.initial_value())
        for attribute, value in values.items():
            DIRECTIVES[attribute.replace("_", "-")].set_in(self, value)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Config)
            and self.user_lines == other.user_lines
            and all(row.value_in(self) == row.value_in(other) for row in DIRECTIVES.values())
        )

    def located(self, name: str) -> str:
        """The path of a file that a directive names; empty if there is none. As in Redis, a
        relative name begins at `dir`."""
        return str(self.dir / name) if name else ""

    def shown(self, name: str) -> str:
        """A directive's value in the form of CONFIG GET."""
        directive = DIRECTIVES[name]
        value = directive.value_in(self)
        if name == "save" and value is None:
            return "" if self.appendonly else SAVE_POINTS_DEFAULT
        return directive.kind.show(value)

    def named(self, name: bytes) -> str | None:
        """The value of the directive with this name or older name; None if there is none. Letters
        in upper case and globs are for `matching`."""
        directive = NAMES.get(name)
        return None if directive is None else self.shown(directive)

    def matching(self, patterns: Sequence[bytes]) -> dict[str, str]:
        """Directives and their older names that match one of the globs, in the table's order. A
        directive that is named in full keeps the spelling of the request."""
        written = {word.decode("utf-8", "replace").lower(): word for word in patterns}
        return {
            written.get(name, name.encode()).decode(): self.shown(ALIASES.get(name, name))
            for name in _names_matching(patterns, written)
        }

    def parsed(self, name: str, text: str) -> Any:
        """The value of a text for a known directive; ValueError says what is wrong."""
        directive = DIRECTIVES[name]
        return directive.kind.parse(text, directive.value_in(self))


def _rows() -> Iterable[Directive]:
    """All rows, directives with an effect first."""
    rows = [
        row
        for owner in (
            Accepted,
            UnixDirectives,
            TlsDirectives,
            MetricsDirectives,
            ClusterDirectives,
            StoreDirectives,
            GatewayDirectives,
            ReplicaDirectives,
            ProcessDirectives,
            Config,
        )
        for row in vars(owner).values()
        if isinstance(row, Directive)
    ]
    last = [REPLICAS, COMPATIBILITY]
    return sorted(rows, key=lambda row: last.index(row.section) if row.section in last else -1)


DIRECTIVES: dict[str, Directive] = {directive.name: directive for directive in _rows()}
NAMES = {name.encode(): ALIASES.get(name, name) for name in (*DIRECTIVES, *ALIASES)}
"""The directive's name for each name and older name in CONFIG GET."""


def _names_matching(patterns: Sequence[bytes], written: Collection[str]) -> list[str]:
    """Names and older names for CONFIG GET: those in `written` are named in full."""
    if not any(letter in pattern for pattern in patterns for letter in b"*?[\\"):
        return [name for name in written if name in DIRECTIVES or name in ALIASES]
    tests = [matcher(pattern.lower()) for pattern in patterns]
    return [
        name
        for name in [*DIRECTIVES, *ALIASES]
        if (name not in HIDDEN or name in written) and any(test(name.encode()) for test in tests)
    ]


def find_directive(name: str) -> Directive | None:
    """A directive by its name or an older name; case does not matter."""
    name = name.lower()
    return DIRECTIVES.get(ALIASES.get(name, name))


# CONFIG SET


CHANGEABLE_IN_REDIS = frozenset({"bind", "dbfilename", "dir", "port", "tls-port"})


def refused(name: str, why: str) -> CommandError:
    return CommandError(f"ERR CONFIG SET failed (possibly related to argument '{name}') - {why}")


def changed_values(config: Config, pairs: Sequence[tuple[bytes, bytes]]) -> dict[str, Any]:
    """The new values for CONFIG SET by name, all checked; nothing is set.

    Raises CommandError with Redis' text for the first pair that cannot be set.
    """
    names = [name.decode("utf-8", "replace") for name, _ in pairs]
    values: dict[str, Any] = {}
    for name, (_, text) in zip(names, pairs, strict=True):
        directive = find_directive(name)
        if directive is None:
            raise CommandError(
                f"ERR Unknown option or number of arguments for CONFIG SET - '{name}'"
            )
        if not directive.mutable and not _is_as_it_is(config, directive, text):
            raise refused(name, "can't set immutable config")
        if directive.name in values:
            raise refused(name, "duplicate parameter")
        values[directive.name] = None
    for name, (_, text) in zip(names, pairs, strict=True):
        directive = find_directive(name)
        assert directive is not None
        try:
            value = config.parsed(directive.name, text.decode("utf-8", "surrogateescape"))
        except ValueError as problem:
            raise refused(name, str(problem)) from None
        values[directive.name] = value
    return values


def _is_as_it_is(config: Config, directive: Directive, text: bytes) -> bool:
    """True if CONFIG SET gives the current value to a directive that only Redis can change. Tools
    do so when they restore a configuration."""
    if directive.name not in CHANGEABLE_IN_REDIS:
        return False
    return config.shown(directive.name) == text.decode("utf-8", "surrogateescape")
