"""Directives: how they are read from files and command lines, and what CONFIG GET and SET make of
them. Refusals name the place and the directive."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import CommandError, StartError
from millstream.server.config.apply import READ
from millstream.server.config.cluster_directives import ClusterDirectives
from millstream.server.config.config_rewrite import lines_of, rewrite_file
from millstream.server.config.directives import (
    DIRECTIVES,
    Config,
    changed_values,
)
from millstream.server.config.exposed_secrets import exposure_warnings
from millstream.server.config.ignored_directives import ACCEPTED, ALIASES, HIDDEN, INSTEAD
from millstream.server.config.kinds import COMPATIBILITY, EVENTS, OutputLimit, UserLimit, parse_size
from millstream.server.config.lines import INCLUDES_MAX, Line, read_arguments, words_of
from millstream.server.config.loading import apply_lines, load
from millstream.server.config.metrics_directives import MetricsDirectives
from millstream.server.config.process_directives import ProcessDirectives
from millstream.server.config.replica_directives import ReplicaDirectives
from millstream.server.config.store_directives import GatewayDirectives, StoreDirectives
from millstream.server.config.tls_directives import TlsDirectives, UnixDirectives
from millstream.server.config_check import warnings, warnings_of_ignored

ROOT = Path(__file__).resolve().parents[2]
NO_DIRECTIVES = {
    "user_lines", "files_with_passwords", "sources", "unix", "tls", "metrics", "cluster",
    "accepted", "gateway",
}  # fmt: skip


def from_file(tmp_path: Path, text: str, *arguments: str) -> Config:
    file = tmp_path / "millstream.conf"
    file.write_text(text)
    return load(file, arguments)


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(StartError) as refused:
        from_file(tmp_path, text)
    return str(refused.value).replace(f"{tmp_path}/", "")


def set_refusal(*pairs: tuple[bytes, bytes]) -> str:
    with pytest.raises(CommandError) as refused:
        changed_values(Config(), pairs)
    return refused.value.message


# The table


def test_every_directive_shows_a_value_that_it_reads_back() -> None:
    config = Config()
    for name, directive in DIRECTIVES.items():
        if name == "save":  # unset, it depends on the journal
            continue
        shown = config.shown(name)
        read = config.parsed(name, shown)
        directive.set_in(config, read)
        assert config.shown(name) == shown


def test_defaults_are_safe_ones() -> None:
    config = Config()
    assert config.bind == ("127.0.0.1",)
    assert config.protected_mode
    assert config.appendonly
    assert config.appendfsync == "always"


def test_configurations_share_no_mutable_value() -> None:
    Config().client_output_buffer_limit["normal"] = OutputLimit(1, 1, 1)
    assert Config().client_output_buffer_limit["normal"] == OutputLimit(0, 0, 0)


def test_ignored_directives_are_a_named_list() -> None:
    assert [name for name, *_ in ACCEPTED] == [
        name for name, directive in DIRECTIVES.items() if directive.section == COMPATIBILITY
    ]
    assert set(ALIASES.values()) <= DIRECTIVES.keys()
    assert not ALIASES.keys() & DIRECTIVES.keys()
    assert INSTEAD.keys() <= {name for name, *_ in ACCEPTED}


def test_the_server_reads_no_ignored_directive() -> None:
    sources = [
        (path, path.read_text())
        for folder in ("server", "commands", "storage")
        for path in (ROOT / folder).rglob("*.py*")
        if path.suffix in (".py", ".pyx", ".pxd")
    ]
    for name, *_ in ACCEPTED:
        attribute = r"config\." + name.replace("-", "_")
        readers = [path.name for path, text in sources if re.search(rf"{attribute}\b", text)]
        assert readers == [], name


def test_every_field_is_a_directive() -> None:
    found = {name for name, *_ in ACCEPTED}
    for owner in (
        ReplicaDirectives, ProcessDirectives, MetricsDirectives, ClusterDirectives, StoreDirectives,
        GatewayDirectives,
        UnixDirectives, TlsDirectives, Config,
    ):  # fmt: skip
        prefix = getattr(owner, "PREFIX", "")
        parts = NO_DIRECTIVES if owner is Config else set()
        names = inspect.get_annotations(owner).keys() - parts
        found |= {f"{prefix}{name}".replace("_", "-") for name in names}
    assert found == DIRECTIVES.keys()


def test_a_directive_without_an_effect_of_its_own_is_read() -> None:
    """CONFIG SET of any other one would answer OK and change nothing."""
    texts = [
        path.read_text() for path in (ROOT / "server").rglob("*.py") if "config" not in path.parts
    ]
    for row in DIRECTIVES.values():
        if row.apply is READ and row.part != "accepted":
            field = rf"config\.{row.part and row.part + '.'}{row.attribute}\b"
            assert any(re.search(field, text) for text in texts), row.name


# Values


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("100", 100),
        ("7b", 7),
        ("1k", 1000),
        ("1kb", 1024),
        ("1m", 1_000_000),
        ("64mb", 64 * 1024**2),
        ("1G", 10**9),
        ("1GB", 1024**3),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "-1", "1x", "mb", "1.5mb", "1 mb", "٣"])
def test_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="argument must be a memory value"):
        parse_size(text)


def test_save_points_depend_on_the_journal_until_they_are_set() -> None:
    config = Config()
    assert config.shown("save") == ""
    config.appendonly = False
    assert config.shown("save") == "3600 1 300 100 60 10000"
    config.save = "900 1"
    assert config.shown("save") == "900 1"
    config.save = ""
    assert config.shown("save") == ""


def test_output_limits_change_one_class_and_keep_the_others() -> None:
    limits = Config().parsed("client-output-buffer-limit", "replica 1mb 512kb 7")
    assert limits["slave"] == OutputLimit(1024**2, 512 * 1024, 7)
    assert limits["normal"] == OutputLimit(0, 0, 0)
    assert limits["pubsub"] == Config().client_output_buffer_limit["pubsub"]


# Words of a line


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("port 7000", ["port", "7000"]),
        ("  save   900 1  ", ["save", "900", "1"]),
        ('requirepass "two words"', ["requirepass", "two words"]),
        (r'x "a\"b\\c\n\x41"', ["x", 'a"b\\c\nA']),
        (r"x 'it\'s \n'", ["x", r"it's \n"]),
        ('save ""', ["save", ""]),
        ("requirepass a#b", ["requirepass", "a#b"]),
        ('requirepass a"b c"', ["requirepass", "ab c"]),
        (r'requirepass "\xc3\xa9\xff"', ["requirepass", "é\udcff"]),
    ],
)
def test_words(line: str, words: list[str]) -> None:
    assert words_of(line.encode()) == words


@pytest.mark.parametrize("line", ['x "open', "x 'open", 'x "a"b', "'a'b"])
def test_quotes_that_do_not_fit(line: str) -> None:
    with pytest.raises(ValueError, match="unbalanced quotes"):
        words_of(line.encode())


@given(st.text())
def test_any_line_is_split_or_refused(line: str) -> None:
    try:
        words = words_of(line.encode())
    except ValueError:
        assert '"' in line or "'" in line
    else:
        assert len("".join(words)) <= len(line)


# Files and command lines


def test_a_file(tmp_path: Path) -> None:
    config = from_file(
        tmp_path,
        """
        # a comment
        port 7000
        BIND 127.0.0.1 ::1
        dir "/some where"
        appendfsync everysec
        save 900 1
        save 300 100
        requirepass "pass \\"word\\""
        """,
    )
    assert config.port == 7000
    assert config.bind == ("127.0.0.1", "::1")
    assert config.dir == Path("/some where")
    assert config.appendfsync == "everysec"
    assert config.save == "900 1 300 100"
    assert config.requirepass == 'pass "word"'


def test_an_empty_save_line_forgets_the_ones_before(tmp_path: Path) -> None:
    assert from_file(tmp_path, 'save 900 1\nsave ""').save == ""
    assert from_file(tmp_path, 'save 900 1\nsave ""\nsave 5 6').save == "5 6"


def test_the_command_line_counts_more_than_the_file(tmp_path: Path) -> None:
    config = from_file(tmp_path, "port 7000\nsave 900 1", "--port", "7001", "--save", "5", "6")
    assert config.port == 7001
    assert config.save == "5 6"


def test_a_command_line_gives_values_in_both_ways() -> None:
    assert [line[1:] for line in read_arguments(["--port=1", "--save", "", "--dir", "a b"])] == [
        ("port", ["1"]),
        ("save", [""]),
        ("dir", ["a b"]),
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("\nporrt 1", "millstream.conf, line 2: unknown directive 'porrt'; did you mean 'port'?"),
        ("port", "millstream.conf, line 1: port: takes a value"),
        ("port 1 2", "millstream.conf, line 1: port: takes one value"),
        (
            'bind ""',
            "millstream.conf, line 1: bind: needs an address, for example 127.0.0.1; * means all",
        ),
        (
            'dir ""',
            "millstream.conf, line 1: dir: the path is empty; give a folder, for example data",
        ),
        (
            "# x\n\nport abc",
            "millstream.conf, line 3: port: argument couldn't be parsed into an integer",
        ),
        (
            "port 70000",
            "millstream.conf, line 1: port: argument must be between 0 and 65535 inclusive",
        ),
        (
            "appendfsync daily",
            "millstream.conf, line 1: appendfsync: argument(s) must be one of the following: "
            "everysec, always, no",
        ),
        ("appendonly maybe", "millstream.conf, line 1: appendonly: argument must be 'yes' or 'no'"),
        ("save 1", "millstream.conf, line 1: save: Invalid save parameters"),
        (
            "daemonize yes",
            "millstream.conf, line 1: daemonize: the server stays in the foreground; let systemd "
            "run it (deploy/millstream.service)",
        ),
        (
            "replicaof a..b 1",
            "millstream.conf, line 1: replicaof: 'a..b' is neither the name nor the IP address of "
            "a host; give one without a port",
        ),
        ("daemonize perhaps", "millstream.conf, line 1: daemonize: the only supported value is no"),
        ("xyzzy 1", "millstream.conf, line 1: unknown directive 'xyzzy'"),
        ('dir "x', "millstream.conf, line 1: unbalanced quotes"),
        (
            "port 1\x002",
            "millstream.conf, line 1: the line has the control character \\x00 (NUL): remove it",
        ),
        (
            "maxmemory-policy allkeys-lru",
            "millstream.conf, line 1: maxmemory-policy: argument(s) must be one of the following: "
            "noeviction, allstreams-oldest",
        ),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    assert refusal(tmp_path, text) == sentence


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"cannot read .*none: No such file or directory"):
        load(tmp_path / "none", [])


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "binary"
    file.write_bytes(b"port 1\n\n# \xff\xfe\n")
    with pytest.raises(StartError, match=r"binary, line 3: .*not UTF-8 text"):
        load(file, [])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--porrt", "1"], "command line: unknown directive 'porrt'; did you mean 'port'?"),
        (
            ["--check"],
            "command line: unknown directive 'check'; `millstream serve --check` checks a "
            "configuration",
        ),
        (["--port"], "command line: port: takes a value"),
        (["7000"], "command line: '7000' does not belong to a directive"),
    ],
)
def test_a_wrong_command_line_is_named(arguments: list[str], sentence: str) -> None:
    with pytest.raises(StartError) as refused:
        load(None, arguments)
    assert str(refused.value) == sentence


# Files that include others


def test_an_included_file_replaces_its_line(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("port 2\ntimeout 3\nsave 900 1\n")
    config = from_file(tmp_path, f"port 1\ninclude {tmp_path}/other\ntimeout 4\nsave 60 2")
    assert (config.port, config.timeout, config.save) == (2, 4, "900 1 60 2")


def test_a_pattern_includes_every_file_that_matches_in_order(tmp_path: Path) -> None:
    for name, port in (("b.conf", 2), ("a.conf", 1), ("c.txt", 3)):
        (tmp_path / name).write_text(f"port {port}\ndatabases {port}\n")
    folder = tmp_path / "etc"
    folder.mkdir()
    assert from_file(folder, f"include {tmp_path}/*.conf").port == 2
    assert from_file(folder, f"include {tmp_path}/*.none").port == 6455


def test_the_command_line_can_include_a_file(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("port 2\n")
    assert load(None, ["--port", "1", "--include", str(tmp_path / "other")]).port == 2


def test_an_error_in_an_included_file_names_that_file(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("\nport x\n")
    assert refusal(tmp_path, f"include {tmp_path}/other").startswith("other, line 2: port: ")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("include", "millstream.conf, line 1: include: takes a value"),
        ("include a b", "millstream.conf, line 1: include: takes one value"),
        (
            "port 1\ninclude DIR/none",
            "millstream.conf, line 2: include: cannot read DIR/none: No such file or directory",
        ),
        (
            "include DIR/millstream.conf",
            "millstream.conf, line 1: include: DIR/millstream.conf includes itself",
        ),
    ],
)
def test_an_include_that_cannot_be_done(tmp_path: Path, text: str, sentence: str) -> None:
    written = text.replace("DIR", str(tmp_path))
    shown = refusal(tmp_path, written).replace(f"{tmp_path}/", "")
    assert shown == sentence.replace("DIR/", "")


def test_files_that_include_each_other_have_an_end(tmp_path: Path) -> None:
    for number in range(INCLUDES_MAX + 2):
        (tmp_path / f"{number}").write_text(f"include {tmp_path}/{number + 1}\n")
    with pytest.raises(StartError, match="more than 16 files deep"):
        load(tmp_path / "0", [])


# The lines of the redis.conf that comes with Redis 8.6, without its comments.
STOCK = """
bind 127.0.0.1 -::1
protected-mode yes
port 6379
tcp-backlog 511
timeout 0
tcp-keepalive 300
daemonize no
pidfile /var/run/redis_6379.pid
loglevel notice
logfile ""
databases 16
always-show-logo no
set-proc-title yes
proc-title-template "{title} {listen-addr} {server-mode}"
locale-collate ""
stop-writes-on-bgsave-error yes
rdbcompression yes
rdbchecksum yes
dbfilename dump.rdb
rdb-del-sync-files no
dir ./
replica-serve-stale-data yes
replica-read-only yes
repl-diskless-sync yes
repl-diskless-sync-delay 5
repl-diskless-sync-max-replicas 0
repl-diskless-load disabled
repl-disable-tcp-nodelay no
replica-priority 100
acllog-max-len 128
lazyfree-lazy-eviction no
lazyfree-lazy-expire no
lazyfree-lazy-server-del no
replica-lazy-flush no
lazyfree-lazy-user-del no
lazyfree-lazy-user-flush no
oom-score-adj no
oom-score-adj-values 0 200 800
disable-thp yes
appendonly no
appendfilename "appendonly.aof"
appenddirname "appendonlydir"
appendfsync everysec
no-appendfsync-on-rewrite no
auto-aof-rewrite-percentage 100
auto-aof-rewrite-min-size 64mb
aof-load-truncated yes
aof-use-rdb-preamble yes
aof-timestamp-enabled no
slowlog-log-slower-than 10000
slowlog-max-len 128
latency-monitor-threshold 0
notify-keyspace-events ""
hash-max-listpack-entries 512
hash-max-listpack-value 64
list-max-listpack-size -2
list-compress-depth 0
set-max-intset-entries 512
set-max-listpack-entries 128
set-max-listpack-value 64
zset-max-listpack-entries 128
zset-max-listpack-value 64
hll-sparse-max-bytes 3000
stream-node-max-bytes 4096
stream-node-max-entries 100
activerehashing yes
client-output-buffer-limit normal 0 0 0
client-output-buffer-limit replica 256mb 64mb 60
client-output-buffer-limit pubsub 32mb 8mb 60
hz 10
dynamic-hz yes
aof-rewrite-incremental-fsync yes
rdb-save-incremental-fsync yes
jemalloc-bg-thread yes
"""


def test_the_configuration_file_of_redis_is_accepted(tmp_path: Path) -> None:
    config = from_file(tmp_path, STOCK)
    assert (config.port, config.appendonly, config.bind) == (6379, False, ("127.0.0.1", "-::1"))


# CONFIG GET and SET


def test_get_matches_globs_in_any_case() -> None:
    config = Config()
    assert config.matching([b"PORT"]) == {"PORT": "6455"}
    assert config.matching([b"POR*"]) == {"port": "6455"}
    assert config.matching([b"appendf*", b"port"]).keys() == {
        "port",
        "appendfsync",
        "appendfsync-groups",
        "appendfilename",
    }
    assert config.matching([b"*"]).keys() == (DIRECTIVES.keys() | ALIASES.keys()) - HIDDEN
    assert config.matching([b"*-save-delay", b"Key-Load-Delay"]) == {"Key-Load-Delay": "0"}
    assert config.matching([b"nosuch"]) == {}


def test_changed_values_are_returned_and_not_set() -> None:
    config = Config()
    assert changed_values(config, [(b"TIMEOUT", b"7"), (b"loglevel", b"debug")]) == {
        "timeout": 7,
        "loglevel": "debug",
    }
    assert config == Config()


def test_hz_becomes_the_nearest_allowed_value() -> None:
    for written, hz in ((b"1000", 500), (b"0", 1), (b"500", 500), (b"50", 50)):
        assert changed_values(Config(), [(b"hz", written)]) == {"hz": hz}
    assert "argument must be between" in set_refusal((b"hz", b"-1"))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(b"a", b"b")], "ERR Unknown option or number of arguments for CONFIG SET - 'a'"),
        (
            [(b"timeout", b"3"), (b"timeout", b"4")],
            "ERR CONFIG SET failed (possibly related to argument 'timeout') - duplicate parameter",
        ),
        (
            [(b"databases", b"3")],
            "ERR CONFIG SET failed (possibly related to argument 'databases') - "
            "can't set immutable config",
        ),
        (
            [(b"timeout", b"-1")],
            "ERR CONFIG SET failed (possibly related to argument 'timeout') - "
            "argument must be between 0 and 2147483647 inclusive",
        ),
        (
            [(b"timeout", b"1"), (b"client-query-buffer-limit", b"x")],
            "ERR CONFIG SET failed (possibly related to argument 'client-query-buffer-limit') - "
            "argument must be a memory value",
        ),
        (
            [(b"client-output-buffer-limit", b"foo 1 2 3")],
            "ERR CONFIG SET failed (possibly related to argument 'client-output-buffer-limit') - "
            "Invalid client class specified in buffer limit configuration.",
        ),
    ],
)
def test_set_refuses_in_the_words_of_redis(pairs: list[tuple[bytes, bytes]], message: str) -> None:
    assert set_refusal(*pairs) == message


def test_older_names_mean_the_same_directive() -> None:
    config = Config()
    assert changed_values(config, [(b"list-max-ziplist-size", b"16")]) == {
        "list-max-listpack-size": 16
    }
    assert config.matching([b"list-max-*"]) == {
        "list-max-listpack-size": "-2",
        "list-max-ziplist-size": "-2",
    }


def test_a_tool_may_restore_the_values_that_it_found() -> None:
    config = Config()
    for name, value in config.matching([b"*"]).items():
        directive = DIRECTIVES[ALIASES.get(name, name)]
        if directive.mutable or name in ("port", "bind", "dir", "dbfilename"):
            changed_values(config, [(name.encode(), value.encode())])
    assert "immutable" in set_refusal((b"port", b"1"))
    assert "immutable" in set_refusal((b"databases", b"16"))


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("KEA", "AKE"), ("AKE", "AKE"), ("g$KE", "g$KE"), ("Elshz", "lshzE"), ("KEmn", "nKEm"),
        ("tEx", "xtE"), ("Kx", "xK"), ("", ""), ("g$lshzxetd", "A"),
    ],
)  # fmt: skip
def test_event_classes_are_shown_in_the_order_of_redis(written: str, shown: str) -> None:
    assert EVENTS.show(EVENTS.parse(written, "")) == shown


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        (b"notify-keyspace-events", b"q", "Invalid event class character."),
        (b"latency-tracking-info-percentiles", b"50 a", "Invalid latency-tracking-info-percenti"),
        (b"latency-tracking-info-percentiles", b"101", "should sit between [0.0,100.0]"),
        (b"oom-score-adj-values", b"-2001 0 0", "must be between -2000 and 2000"),
        (b"oom-score-adj-values", b"1 2", "wrong number of arguments"),
        (b"shutdown-on-sigterm", b"later", "must be one of the following: default, save, nosave"),
        (b"shutdown-on-sigint", b"save nosave", "SAVE and NOSAVE can't be used simultaneously"),
        (b"user-limits", b"app 1", "a user, a number of connections and a size of memory"),
        (b"user-limits", b"app -1 0", "argument must be between 0 and"),
        (b"user-limits", b"app 1 much", "argument must be a memory value"),
        (b"oom-score-adj-values", b"1 2 1_0", "must be between -2000 and 2000"),
        (b"enable-debug-command", b"yes", "can't set immutable config"),
        (b"slowlog-log-slower-than", b"-2", "argument must be between -1 and"),
        (b"replica-announce-ip", b"a b", "'a b' is neither the name nor the IP address of a host"),
        (b"stream-idmp-duration", b"0", "argument must be between 1 and 86400 inclusive"),
        *(
            (b"client-output-buffer-limit", value, "Error in hard, soft or soft_seconds setting")
            for value in (
                b"normal 0 0 -5", b"normal -1 0 0", b"normal 0 0 1_0", b"normal 0 0 3000000000",
                b"normal 0 0 " + b"9" * 24, b"normal 0 " + b"9" * 5000 + b" 0",
            )
        ),
        *(
            (b"latency-tracking-info-percentiles", value, "Invalid latency-tracking-info-percent")
            for value in (b"1_0", b"nan", "\u00b2".encode(), "\u0665".encode())
        ),
        (b"latency-tracking-info-percentiles", b"inf", "should sit between [0.0,100.0]"),
    ],
)  # fmt: skip
def test_values_that_are_refused(name: bytes, value: bytes, why: str) -> None:
    assert why in set_refusal((name, value))


@pytest.mark.parametrize(
    ("name", "form", "why"),
    [
        (b"save", b"%b 1", "Invalid save parameters"),
        (b"save", b"1 %b", "Invalid save parameters"),
        (b"maxclients", b"%b", "argument couldn't be parsed into an integer"),
        (b"maxmemory", b"%b", "argument must be a memory value"),
        (b"maxmemory-clients", b"%b%%", "argument must be a memory or percent value"),
        (b"oom-score-adj-values", b"1 2 %b", "must be between -2000 and 2000"),
    ],
)
@pytest.mark.parametrize("digits", ["1_0", "\u00b2", "\u0665", "9" * 5000])
def test_numbers_have_ascii_digits(name: bytes, form: bytes, why: str, digits: str) -> None:
    assert why in set_refusal((name, form % digits.encode()))


@pytest.mark.parametrize("port", ["\u00b2", "1_0", "9" * 5000, "65536"])
def test_the_port_of_a_primary_is_checked(port: str) -> None:
    with pytest.raises(ValueError, match="argument must be a host and a port"):
        Config().parsed("replicaof", f"db1 {port}")


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("latency-tracking-info-percentiles", "99.99999 50.50 1e1 .5", "99.99999 50.5 10 0.5"),
        ("oom-score-adj-values", "1 2 +3", "1 2 3"),
        ("save", "+1 01", "1 1"),
        ("shutdown-on-sigterm", "FORCE nosave now", "nosave now force"),
        ("shutdown-on-sigint", "default", "default"),
        ("oom-score-adj", "relative", "yes"),
        ("user-limits", "a 1 1mb * 0 2k a 5 0 b 0 0", "* 0 2000 a 5 0 b 0 0"),
        ("maxclients", "0" * 5000 + "7", "7"),
    ],
)
def test_a_number_keeps_its_value(name: str, text: str, shown: str) -> None:
    assert DIRECTIVES[name].kind.show(Config().parsed(name, text)) == shown


def test_an_output_limit_has_at_most_64_bits() -> None:
    limits = Config().parsed("client-output-buffer-limit", f"normal {'9' * 23} 0 +5")
    assert limits["normal"] == OutputLimit(2**64 - 1, 0, 5)


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    """CONFIG REWRITE leaves it out."""
    (tmp_path / "more.conf").write_text("\ufeffmaxclients 77\n")
    config = from_file(tmp_path, f"\ufeffport 7000\ninclude {tmp_path}/more.conf\n")
    assert (config.port, config.maxclients) == (7000, 77)
    file = tmp_path / "millstream.conf"
    config.port = 7001
    rewrite_file(file, config)
    assert file.read_text().splitlines()[0] == "port 7001"


# Values without effect


def warnings_with(**values: object) -> list[str]:
    return warnings_of_ignored(Config(**values), DIRECTIVES)


def test_a_value_that_has_no_effect_is_a_warning() -> None:
    """Only if it differs from the default of Redis and asks for something."""
    assert warnings_with() == []
    assert warnings_with(io_threads=4, hz=100, no_appendfsync_on_rewrite=True) == []
    assert warnings_with(socket_mark_id=5) == [
        "socket-mark-id 5 has no effect: connections are not marked, so no rule of a firewall can "
        "match the mark"
    ]
    replica = warnings_with(replica_ignore_maxmemory=False, replica_ignore_disk_write_errors=True)
    assert [sentence.split()[0] for sentence in replica] == [
        "replica-ignore-maxmemory", "replica-ignore-disk-write-errors",
    ]  # fmt: skip


def test_a_share_of_no_maxmemory_is_a_warning() -> None:
    assert "maxmemory is 0" in warnings_with(maxmemory_clients="5%")[0]
    assert warnings_with(maxmemory_clients="5%", maxmemory=1 << 30) == []
    assert warnings_with(maxmemory_clients="0%") == []


def test_group_syncs_without_effect_are_a_warning() -> None:
    for mode in ("everysec", "no"):
        assert warnings_with(appendfsync=mode, appendfsync_groups="everysec") == [
            f"appendfsync-groups everysec has no effect: appendfsync is {mode}"
        ]
    assert warnings_with(appendonly=False, appendfsync_groups="everysec") == [
        "appendfsync-groups everysec has no effect: appendonly is no"
    ]
    assert warnings_with(appendfsync="always", appendfsync_groups="everysec") == []
    assert warnings_with(appendfsync="no") == []


def test_lines_of_user_limits_are_combined_and_rewritten() -> None:
    config = Config()
    lines = ["user-limits app 100 64mb", "user-limits * 0 1mb"]
    apply_lines(config, [Line("f, line 1", *_name_and_words(line)) for line in lines])
    assert config.user_limits == {"app": UserLimit(100, 64 << 20), "*": UserLimit(0, 1 << 20)}
    assert lines_of(config, "user-limits") == [
        "user-limits app 100 67108864", "user-limits * 0 1048576",
    ]  # fmt: skip
    assert lines_of(Config(), "user-limits") == ['user-limits ""']


def _name_and_words(line: str) -> tuple[str, list[str]]:
    name, *words = line.split()
    return name, words


# Secrets that others can read


@pytest.mark.parametrize(
    ("text", "is_secret"),
    [
        ("requirepass x", True), ("masterauth x", True), ("tls-key-file-pass x", True),
        ("user app on >x ~*", True), (f"user app on #{'a' * 64}", True),
        ("requirepass ''", False), ("user app on nopass ~*", False), ("masteruser x", False),
    ],
)  # fmt: skip
def test_a_password_that_others_can_read_is_a_warning(
    tmp_path: Path, text: str, is_secret: bool
) -> None:
    """In the file itself, and in an included one, which is then the one that is named."""
    inner = tmp_path / "inner.conf"
    inner.write_text(text)
    inner.chmod(0o644)
    config = from_file(tmp_path, f"include {inner}")
    assert exposure_warnings(config) == is_secret * [
        f"{inner} contains passwords, and every user of this machine can read it (mode 0644): "
        f"chmod 600 {inner}"
    ]
    inner.chmod(0o640)
    assert exposure_warnings(config) == []


def test_keys_and_users_that_others_can_read_are_warnings(tmp_path: Path) -> None:
    for name in ("users.acl", "server.key", "client.key", "etcd", "etcd.key"):
        (tmp_path / name).write_text("# by hand\nuser app on >x\n")
        (tmp_path / name).chmod(0o604)
    config = from_file(
        tmp_path,
        f"dir {tmp_path}\naclfile users.acl\ntls-key-file server.key\n"
        f"tls-client-key-file {tmp_path}/client.key\ncluster-name prod\n"
        f"cluster-etcd-password-file {tmp_path}/etcd\ncluster-etcd-key {tmp_path}/etcd.key",
    )
    found = warnings(config, tmp_path / "millstream.conf")
    files = ["users.acl", "server.key", "client.key", "etcd", "etcd.key"]
    assert [line.rpartition("/")[2] for line in found] == files
    (tmp_path / "users.acl").write_text("user default on nopass ~* +@all\n")
    assert len(exposure_warnings(config)) == 4
