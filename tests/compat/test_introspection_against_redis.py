"""INFO, COMMAND and CONFIG compared with redis-server: the same names, or the reason why not.

Debian's redis-server is 7.0; what later versions changed is named too.
"""

from __future__ import annotations

import re

import pytest
import redis
from tests.support.client import RawClient, as_list
from tests.support.resp import Reply, Set
from tests.support.server import Server
from tests.support.waiting import wait_until

from millstream.commands.table.loader import load_table
from millstream.commands.table.registry import COMMANDS

load_table()

# Fields of Redis' INFO that this server leaves out, by the reason.
LEFT_OUT = {
    "no atomic variables": {"atomicvar_api"},
    "not counted": {
        "current_save_keys_processed", "current_save_keys_total",
        "aof_rewrites_consecutive_failures",
        "expire_cycle_cpu_milliseconds",
    },
}  # fmt: skip
# What Redis 8 has and 7.0 has not, or this server alone has.
OURS = {
    "server", "millstream_version", "python_version", "listener0", "pubsub_clients",
    "watching_clients", "total_watched_keys", "total_blocking_keys",
    "total_blocking_keys_on_nokey", "evicted_scripts", "evicted_entries", "evicted_blocks",
    "missed_entries", "scheduled_entries", "scheduled_fired", "dead_letters",
    "dead_letters_pending", "entries_lost",
    "tls_handshake_failures",
    "user_limit_refusals",
    "user_limit_disconnections",
    "lame_duck",
    "config_last_reload_time",
    "config_last_reload_status",
    "clock_last_jump_ms",
    "clock_jumps",
    "client_output_buffer_limit_disconnections", "client_query_buffer_limit_disconnections",
    "last_backup_time",
    "journal_queue_stalls", "reservations_pending", "reservations_expired", "paused_reason",
    "paused_actions",
    "paused_timeout_milliseconds", "allocator_muzzy",
    "mem_replica_full_sync_buffer", "mem_overhead_db_hashtable_rehashing", "expired_subkeys",
    "expired_keys_active", "expired_subkeys_active", "io_threaded_total_prefetch_batches",
    "io_threaded_total_prefetch_entries", "acl_access_denied_auth", "acl_access_denied_cmd",
    "acl_access_denied_key", "acl_access_denied_channel",
    "repl_frame", "repl_durable_frame", "repl_safe_frame", "hold_bytes", "hold_age_ms",
    "promotion_in_progress",
    "superseded_by",
    "repl_link_errors", "sync_rewinds", "repl_refusals", "repl_failed_syncs", "repl_kept_data",
    "repl_last_error", "repl_connection_errors",
}  # fmt: skip


def text_of(reply: Reply) -> str:
    data = getattr(reply, "data", reply)
    assert isinstance(data, bytes)
    return data.decode()


def sections(client: RawClient, *names: str) -> dict[str, list[str]]:
    """The fields of INFO by section, in order."""
    found: dict[str, list[str]] = {}
    for line in text_of(client.call("INFO", *names)).splitlines():
        if line.startswith("# "):
            found[line[2:]] = fields = []
        elif line:
            fields.append(line.split(":")[0])
    return found


def test_info_has_the_fields_of_redis_in_their_order(server: Server, redis_server: Server) -> None:
    left_out = set().union(*LEFT_OUT.values())
    with server.client() as ours, redis_server.client() as theirs:
        expected, found = sections(theirs, "default"), sections(ours, "default")
    assert list(found) == list(expected)
    for name, fields in expected.items():
        if name not in ("Errorstats", "Keyspace"):
            kept = [field for field in fields if field not in left_out]
            assert [field for field in found[name] if field not in OURS] == kept, name


def test_fields_that_are_counted(server: Server) -> None:
    with server.client() as client, server.client() as other:
        client.call("CONFIG", "RESETSTAT")
        for name in ("looked", "alone"):
            client.call("SET", name, "v", "PX", "1")
        wait_until(lambda: client.info("stats")["expired_keys"] == "2")
        stats = client.info("stats")
        assert 1 <= int(stats["expired_keys_active"]) <= 2
        reads = int(stats["total_reads_processed"])
        assert int(stats["total_writes_processed"]) >= 3
        assert reads >= 4
        other.call("PING")
        assert int(client.info("stats")["total_reads_processed"]) >= reads + 2
        assert client.info("clients")["paused_reason"] == "none"
        client.call("CLIENT", "PAUSE", "100000", "WRITE")
        paused = client.info("clients")
        assert paused["paused_reason"] == "client_pause"
        assert paused["paused_actions"] == "write"
        assert 0 < int(paused["paused_timeout_milliseconds"]) <= 100_000
        client.call("CLIENT", "UNPAUSE")
        assert client.info("clients")["paused_actions"] == "none"


def test_existing_fields_are_not_listed_as_omitted(server: Server) -> None:
    with server.client() as client:
        fields = set().union(*sections(client, "everything").values())
    assert not fields & set().union(*LEFT_OUT.values())


@pytest.mark.parametrize(
    "names",
    [
        (), ("default",), ("all",), ("everything",), ("cpu",), ("CPU", "sTats"), ("nosuch",),
        ("cpu", "default"), ("cpu", "all"), ("commandstats", "nosuch"), ("modules",),
        ("latencystats", "errorstats"), ("sentinel",), ("keyspace", "everything"),
    ],
)  # fmt: skip
def test_info_chooses_sections_as_redis(
    server: Server, redis_server: Server, names: tuple[str, ...]
) -> None:
    with server.client() as ours, redis_server.client() as theirs:
        assert list(sections(ours, *names)) == list(sections(theirs, *names))


STATISTICS = [
    ("CONFIG", "RESETSTAT"),
    ("SET", "str", "v"),
    ("SET", "str"),
    ("XLEN", "nokey"),
    ("NOSUCH", "x"),
    ("CLIENT", "ID"),
    ("CLIENT", "NOSUCH"),
    ("XADD", "s", "0-0", "f", "v"),
    ("GET", "nokey"),
    ("GET", "str"),
    ("XADD", "s", "1-1", "f", "v"),
    ("XGROUP", "CREATE", "s", "g", "0"),
    ("XGROUP", "CREATE", "s", "g", "0"),
    ("MULTI",),
    ("SET", "str"),
    ("EXEC",),
    ("SELECT", "9999"),
]


def test_statistics_count_as_in_redis(server: Server, redis_server: Server) -> None:
    found = []
    for each in (server, redis_server):
        with each.client() as client:
            for words in STATISTICS:
                client.call(*words)
            stats = client.info("stats")
            commands = {
                name: re.sub(r"usec=\d+,usec_per_call=[\d.]+,", "", value)
                for name, value in client.info("commandstats").items()
                if name != "cmdstat_info"  # whether the one that runs counts already
            }
            names = ("total_error_replies", "keyspace_hits", "keyspace_misses")
            found.append((commands, client.info("errorstats"), [stats[name] for name in names]))
    ours, theirs = found
    assert ours[0] == theirs[0]
    assert ours[1] == theirs[1]
    assert ours[2] == theirs[2]


def test_blocked_clients_are_counted_as_in_redis(server: Server, redis_server: Server) -> None:
    for each in (server, redis_server):
        with each.client() as client, each.client() as plain, each.client() as grouped:
            client.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
            plain.send("XREAD", "BLOCK", "0", "STREAMS", "s", "other", "$", "$")
            client.wait_blocked(1)
            grouped.send("XREADGROUP", "GROUP", "g", "alice", "BLOCK", "0", "STREAMS", "s", ">")
            client.wait_blocked(2)
            if each is server:  # later than 7.0
                info = client.info("clients")
                assert info["total_blocking_keys"] == "2"
                assert info["total_blocking_keys_on_nokey"] == "1"
            client.call("XADD", "s", "1-1", "f", "v")
            client.call("XADD", "other", "1-1", "f", "v")
            client.wait_blocked(0)


def test_info_keyspace_has_keys_and_expiries(server: Server) -> None:
    with server.client() as client:
        client.call("SET", "str", "v")
        client.call("SET", "going", "v", "PX", "100000")
        line = client.info("keyspace")["db0"]
    found = re.fullmatch(r"keys=2,expires=1,avg_ttl=(\d+),subexpiry=0", line)
    assert found
    assert 50_000 < int(found[1]) <= 100_000


def test_latencystats_has_the_form_of_redis(server: Server, redis_server: Server) -> None:
    for each in (server, redis_server):
        with each.client() as client:
            client.call("CONFIG", "RESETSTAT")
            client.call("SET", "str", "v")
            client.call("CLIENT", "ID")
            figures = client.info("latencystats")
            form = r"p50=\d+\.\d{3},p99=\d+\.\d{3},p99\.9=\d+\.\d{3}"
            for name in ("set", "client|id", "config|resetstat"):
                assert re.fullmatch(form, figures[f"latency_percentiles_usec_{name}"]), name


def test_redis_py_parses_every_reply(server: Server) -> None:
    with redis.Redis(port=server.port) as client:
        client.xadd("s", {"f": "v"})
        client.set("str", "v", ex=100)
        info = client.info("everything")
        assert info["redis_version"].startswith("8.10.")
        assert info["db0"]["keys"] == 2
        assert info["cmdstat_xadd"]["calls"] >= 1
        assert "p50" in info["latency_percentiles_usec_xadd"]
        assert client.info("Keyspace").keys() == {"db0"}
        assert client.memory_stats()["keys.count"] == 2
        assert client.slowlog_get() == [] or client.slowlog_get()[0]["id"] >= 0
        assert client.latency_latest() == []
        assert client.role()[0] in (b"master", "master")
        assert client.waitaof(1, 0, 0) == [1, 0]
        assert "get" in client.command()


# What differs from redis-server 7.0 in COMMAND INFO, by the version that changed it.
CHANGED_SINCE = {
    ("command|getkeys", "arity"), ("command|getkeysandflags", "arity"),  # 7.2
    ("scan", "tips"),  # 7.2
    ("wait", "flags"), ("wait", "categories"),  # 7.4
    ("cluster|slots", "flags"), ("cluster|shards", "flags"),  # 8.0
    ("subscribe", "flags"), ("psubscribe", "flags"), ("ssubscribe", "flags"),  # 8.0
    ("client|setinfo", "tips"), ("client|setname", "tips"), ("config|resetstat", "tips"),
    ("config|rewrite", "tips"), ("latency|reset", "tips"), ("msetnx", "tips"),
    ("randomkey", "tips"), ("acl|deluser", "tips"), ("acl|save", "tips"),
    ("acl|setuser", "tips"),  # as in 8.6
    ("replicaof", "arity"), ("slaveof", "arity"), ("psync", "flags"),  # here alone
}  # fmt: skip


def rows(client: RawClient, names: list[str]) -> dict[str, dict[str, object]]:
    """COMMAND INFO of these commands and their subcommands, comparable."""
    found: dict[str, dict[str, object]] = {}
    for reply in as_list(client.call("COMMAND", "INFO", *names)):
        if isinstance(reply, list):
            row = as_list(reply)
            found[plain(row[0])] = {
                "arity": row[1],
                "flags": sorted(map(plain, as_list(row[2]))),
                "keys": row[3:6],
                "categories": sorted(map(plain, as_list(row[6]))),
                "tips": sorted(map(plain, as_list(row[7]))),
                "key specs": [spec(as_list(one)) for one in as_list(row[8])],
            }
    return found


def plain(reply: Reply) -> str:
    data = getattr(reply, "text", reply)
    return data.decode() if isinstance(data, bytes) else str(data)


def spec(reply: list[Reply]) -> object:
    """A key spec without the notes for people."""
    pairs = dict(zip(map(plain, reply[::2]), reply[1::2], strict=True))
    pairs.pop("notes", None)
    pairs["flags"] = sorted(map(plain, as_list(pairs["flags"])))  # type: ignore[type-var]
    return {name: deep(value) for name, value in pairs.items()}


def deep(reply: object) -> object:
    if isinstance(reply, list):
        return [deep(one) for one in reply]
    return plain(reply) if not isinstance(reply, int) else reply  # type: ignore[arg-type]


def test_command_info_agrees_with_redis(server: Server, redis_server: Server) -> None:
    names = [row.name for row in COMMANDS.values()]
    names += [sub.name for row in COMMANDS.values() for sub in row.subcommands.values()]
    with server.client() as ours, redis_server.client() as theirs:
        found, expected = rows(ours, names), rows(theirs, names)
    assert len(expected) > 100
    differences = {
        (name, part): (found[name][part], theirs)
        for name, row in expected.items()
        for part, theirs in row.items()
        if found[name][part] != theirs and (name, part) not in CHANGED_SINCE
    }
    assert differences == {}


def test_commands_are_as_old_as_in_redis(server: Server, redis_server: Server) -> None:
    ages = []
    for each in (server, redis_server):
        with redis.Redis(port=each.port, protocol=2) as client:
            flat = client.execute_command("COMMAND DOCS")
            ages.append(dict(ages_of(flat)))
    ours, theirs = ages
    theirs["client|pause"] = "3.0.0"  # 7.0 has the number of a version that was not released
    differing = {
        name: (ours[name], since)
        for name, since in theirs.items()
        if name in ours and ours[name] != since and not name.endswith("|help")
    }
    assert differing == {}


def ages_of(docs: object) -> list[tuple[str, str]]:
    found = []
    pairs = docs.items() if isinstance(docs, dict) else zip(docs[::2], docs[1::2], strict=True)  # type: ignore[index]
    for name, row in pairs:
        fields = row if isinstance(row, dict) else dict(zip(row[::2], row[1::2], strict=True))
        fields = {plain(key): value for key, value in fields.items()}
        found.append((plain(name), plain(fields["since"])))
        if "subcommands" in fields:
            found += ages_of(fields["subcommands"])
    return found


def test_every_value_of_config_get_can_be_set_again(server: Server) -> None:
    refused = {}
    with server.client() as client:
        flat = as_list(client.call("CONFIG", "GET", "*"))
        shown = dict(zip(map(plain, flat[::2]), map(plain, flat[1::2]), strict=True))
        for name, value in shown.items():
            reply = plain(client.call("CONFIG", "SET", name, value))
            if reply != "OK":
                refused[name] = reply
        again = as_list(client.call("CONFIG", "GET", "*"))
    assert {reply.rpartition(" - ")[2] for reply in refused.values()} <= {
        "can't set immutable config"
    }
    assert again == flat


def test_config_accepts_the_directives_that_harnesses_set(
    server: Server, redis_server: Server
) -> None:
    """A name of Redis that is unknown here would be a promise that cannot be kept."""
    refused = re.compile(
        r"acl|activedefrag|active-defrag|announce|aof-disable|bgsave|cpulist|cluster-|tls-|unix"
        r"|master|min-(replicas|slaves)|syslog|bind-source|ignore-warnings|latency-tracking$"
    )
    with server.client() as ours, redis_server.client() as theirs:
        known = set(map(plain, as_list(ours.call("CONFIG", "GET", "*"))[::2]))
        names = set(map(plain, as_list(theirs.call("CONFIG", "GET", "*"))[::2]))
    assert {name for name in names - known if not refused.search(name)} == set()


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize(
    "kind",
    [
        "string",
        "integer",
        "double",
        "bignum",
        "null",
        "array",
        "set",
        "map",
        "attrib",
        "push",
        "verbatim",
        "true",
        "false",
        "other",
    ],
)
def test_debug_protocol_answers_the_same_bytes(
    server: Server, redis_server: Server, protocol: int, kind: str
) -> None:
    replies = []
    for each in (server, redis_server):
        with each.client(protocol) as client:
            client.send("DEBUG", "PROTOCOL", kind)
            client.send("QUIT")
            replies.append(client.read_to_end())
    assert replies[0] == replies[1]


def kinds(reply: Reply) -> object:
    """The types of a reply's parts, whose elements may differ."""
    if isinstance(reply, list):
        return [kinds(part) for part in reply]
    if isinstance(reply, Set):
        return {type(part).__name__ for part in reply.items}
    return type(reply).__name__


@pytest.mark.parametrize("name", ["get", "keys", "xread", "xgroup|create", "client|list"])
@pytest.mark.parametrize("protocol", [2, 3])
def test_command_info_has_the_types_of_redis(
    server: Server, redis_server: Server, protocol: int, name: str
) -> None:
    with server.client(protocol) as ours, redis_server.client(protocol) as theirs:
        request = ("COMMAND", "INFO", name)
        assert kinds(ours.call(*request)) == kinds(theirs.call(*request))
