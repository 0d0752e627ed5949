"""COMMAND INFO and DOCS against what redis-server 7.0.15 answered, command by command.

golden/redis-7.0-commands.json has the recorded answers. What later versions of Redis changed or
added is written out below: every row and every tree of arguments must be exactly that. Redis 7.2
renamed many arguments; the names here are the later ones. The names of the options of 8.6 and
later (IDMP, MAXCOUNT, MAXSIZE, RETRYCOUNT) are not recorded from a server. Not compared: texts for
people (summaries, notes, complexity, history), `since` of arguments.

A tree is written as `name:type@TOKEN?*#n(parts)`: the type unless it is string, the token, `?` for
optional, `*` for multiple, the number of the key spec.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from millstream.commands.table.introspection import details, docs
from millstream.commands.table.loader import load_table
from millstream.commands.table.registry import COMMANDS, Command

load_table()
RECORDED = json.loads((Path(__file__).parent / "golden" / "redis-7.0-commands.json").read_text())
ROWS = {
    row.name: row
    for container in COMMANDS.values()
    for row in (container, *container.subcommands.values())
}
# What 7.2 to 8.10 changed in COMMAND INFO.
LATER_ROWS: dict[tuple[str, str], object] = {
    ("command|getkeys", "arity"): -3,
    ("command|getkeysandflags", "arity"): -3,
    ("scan", "tips"): [
        "nondeterministic_output",
        "request_policy:special",
        "response_policy:special",
    ],
    **{
        (name, "tips"): ["request_policy:all_nodes", "response_policy:all_succeeded"]
        for name in ("client|setinfo", "client|setname", "config|resetstat", "config|rewrite")
    },
    ("latency|reset", "tips"): ["request_policy:all_nodes", "response_policy:agg_sum"],
    ("msetnx", "tips"): [],
    ("randomkey", "tips"): [
        "nondeterministic_output",
        "request_policy:all_shards",
        "response_policy:special",
    ],
    ("subscribe", "flags"): ["denyoom", "loading", "noscript", "pubsub", "stale"],
    ("psubscribe", "flags"): ["denyoom", "loading", "noscript", "pubsub", "stale"],
    ("ssubscribe", "flags"): ["denyoom", "loading", "noscript", "pubsub", "stale"],
    ("cluster|shards", "flags"): ["loading", "stale"],
    ("cluster|slots", "flags"): ["loading", "stale"],
    ("wait", "flags"): ["blocking"],
    ("wait", "categories"): ["@blocking", "@connection", "@slow"],
}
# The promotion to a second primary, and a FAILOVER to a replica that serves no old data.
LATER_ROWS |= {("replicaof", "arity"): -3, ("slaveof", "arity"): -3}
LATER_ROWS["psync", "flags"] = [
    "admin", "no_async_loading", "no_multi", "noscript", "stale",
]  # fmt: skip
# Arguments since 7.2: those that differ from the recorded ones, and of later commands.
LATER_ARGUMENTS = {
    "command|getkeys": "command arg?*",
    "command|getkeysandflags": "command arg?*",
    **dict.fromkeys(
        ("replicaof", "slaveof"),
        "args:oneof(host-port:block(host port:integer) "
        "no-one:block(no:pure-token@NO one:pure-token@ONE "
        "independent:pure-token@INDEPENDENT?))",
    ),
    "xidmprecord": "key:key#0 pid iid stream-id",
    "xtrim": (
        "key:key#0 trim:block(strategy:oneof(maxlen:pure-token@MAXLEN "
        "minid:pure-token@MINID) operator:oneof?(equal:pure-token@= "
        "approximately:pure-token@~) threshold count:integer@LIMIT?) "
        "condition:oneof?(keepref:pure-token@KEEPREF delref:pure-token@DELREF "
        "acked:pure-token@ACKED)"
    ),
    "xadd": (
        "key:key#0 nomkstream:pure-token@NOMKSTREAM? "
        "condition:oneof?(keepref:pure-token@KEEPREF delref:pure-token@DELREF "
        "acked:pure-token@ACKED) idmp:oneof?(producer-id@IDMPAUTO "
        "producer-id_idempotent-id:block(producer-id@IDMP idempotent-id)) "
        "trim:block?(strategy:oneof(maxlen:pure-token@MAXLEN minid:pure-token@MINID) "
        "operator:oneof?(equal:pure-token@= approximately:pure-token@~) threshold "
        "count:integer@LIMIT?) id-selector:oneof(auto-id:pure-token@* id) "
        "data:block*(field value)"
    ),
    "xsetid": (
        "key:key#0 last-id entries-added:integer@ENTRIESADDED? max-deleted-id@MAXDELETEDID?"
    ),
    "xdelex": (
        "key:key#0 condition:oneof?(keepref:pure-token@KEEPREF delref:pure-token@DELREF "
        "acked:pure-token@ACKED) ids:block@IDS(numids:integer id*)"
    ),
    "xackdel": (
        "key:key#0 group condition:oneof?(keepref:pure-token@KEEPREF "
        "delref:pure-token@DELREF acked:pure-token@ACKED) ids:block@IDS(numids:integer "
        "id*)"
    ),
    "xread": (
        "count:integer@COUNT? maxcount:integer@MAXCOUNT? maxsize:integer@MAXSIZE? "
        "milliseconds:integer@BLOCK? where:block?(n:integer@WHERE condition*) "
        "streams:block@STREAMS(key:key*#0 id*)"
    ),
    # WHERE is an option of ours.
    "xrange": ("key:key#0 start end count:integer@COUNT? where:block?(n:integer@WHERE condition*)"),
    "xrevrange": (
        "key:key#0 end start count:integer@COUNT? where:block?(n:integer@WHERE condition*)"
    ),
    "xgroup|create": (
        "key:key#0 group id-selector:oneof(id new-id:pure-token@$) "
        "mkstream:pure-token@MKSTREAM? entries-read:integer@ENTRIESREAD?"
    ),
    "xgroup|setid": (
        "key:key#0 group id-selector:oneof(id new-id:pure-token@$) "
        "entries-read:integer@ENTRIESREAD?"
    ),
    "xgroup|destroy": "key:key#0 group",
    "xgroup|createconsumer": "key:key#0 group consumer",
    "xgroup|delconsumer": "key:key#0 group consumer",
    "xreadgroup": (
        "group-block:block@GROUP(group consumer) count:integer@COUNT? "
        "maxcount:integer@MAXCOUNT? maxsize:integer@MAXSIZE? milliseconds:integer@BLOCK? "
        "min-idle-time:integer@CLAIM? noack:pure-token@NOACK? "
        "streams:block@STREAMS(key:key*#0 id*)"
    ),
    "xclaim": (
        "key:key#0 group consumer min-idle-time id* ms:integer@IDLE? "
        "unix-time-milliseconds:unix-time@TIME? count:integer@RETRYCOUNT? "
        "force:pure-token@FORCE? justid:pure-token@JUSTID? lastid@LASTID?"
    ),
    "xnack": (
        "key:key#0 group mode:oneof(silent:pure-token@SILENT fail:pure-token@FAIL "
        "fatal:pure-token@FATAL) ids:block@IDS(numids:integer id*) "
        "count:integer@RETRYCOUNT? force:pure-token@FORCE?"
    ),
    "xinfo|stream": "key:key#0 full-block:block?(full:pure-token@FULL count:integer@COUNT?)",
    "xinfo|consumers": "key:key#0 group",
    "digest": "key:key#0",
    "set": (
        "key:key#0 value condition:oneof?(nx:pure-token@NX xx:pure-token@XX "
        "ifeq-value@IFEQ ifne-value@IFNE ifdeq-digest@IFDEQ ifdne-digest@IFDNE) "
        "get:pure-token@GET? expiration:oneof?(seconds:integer@EX "
        "milliseconds:integer@PX unix-time-seconds:unix-time@EXAT "
        "unix-time-milliseconds:unix-time@PXAT keepttl:pure-token@KEEPTTL)"
    ),
    "mset": "data:block*(key:key#0 value)",
    "msetnx": "data:block*(key:key#0 value)",
    "msetex": (
        "numkeys:integer data:block*(key:key#0 value) condition:oneof?(nx:pure-token@NX "
        "xx:pure-token@XX) expiration:oneof?(seconds:integer@EX milliseconds:integer@PX "
        "unix-time-seconds:unix-time@EXAT unix-time-milliseconds:unix-time@PXAT "
        "keepttl:pure-token@KEEPTTL)"
    ),
    "delex": (
        "key:key#0 condition:oneof?(ifeq-value@IFEQ ifne-value@IFNE ifdeq-digest@IFDEQ "
        "ifdne-digest@IFDNE)"
    ),
    "increx": (
        "key:key#0 increment:oneof?(float:double@BYFLOAT integer:integer@BYINT) "
        "saturate:pure-token@SATURATE? lowerbound@LBOUND? upperbound@UBOUND? "
        "expiration:oneof?(seconds:integer@EX milliseconds:integer@PX "
        "unix-time-seconds:unix-time@EXAT unix-time-milliseconds:unix-time@PXAT "
        "persist:pure-token@PERSIST) enx:pure-token@ENX?"
    ),
    "flushdb": "flush-type:oneof?(async:pure-token@ASYNC sync:pure-token@SYNC)",
    "flushall": "flush-type:oneof?(async:pure-token@ASYNC sync:pure-token@SYNC)",
    "hello": (
        "arguments:block?(protover:integer auth:block@AUTH?(username password) clientname@SETNAME?)"
    ),
    "client|setinfo": "attr:oneof(libname@LIB-NAME libver@LIB-VER)",
    "client|no-touch": "enabled:oneof(on:pure-token@ON off:pure-token@OFF)",
    "client|list": (
        "client-type:oneof@TYPE?(normal:pure-token@NORMAL master:pure-token@MASTER "
        "replica:pure-token@REPLICA pubsub:pure-token@PUBSUB) client-id:integer@ID?*"
    ),
    "client|reply": "action:oneof(on:pure-token@ON off:pure-token@OFF skip:pure-token@SKIP)",
    "client|unblock": (
        "client-id:integer unblock-type:oneof?(timeout:pure-token@TIMEOUT error:pure-token@ERROR)"
    ),
    "psubscribe": "pattern:pattern*",
    "config|get": "parameter*",
    "config|set": "data:block*(parameter value)",
    "shutdown": (
        "save-selector:oneof?(nosave:pure-token@NOSAVE save:pure-token@SAVE) "
        "now:pure-token@NOW? force:pure-token@FORCE? abort:pure-token@ABORT?"
    ),
    "waitaof": "numlocal:integer numreplicas:integer timeout:integer",
    "script|flush": "flush-type:oneof?(async:pure-token@ASYNC sync:pure-token@SYNC)",
    "function|flush": "flush-type:oneof?(async:pure-token@ASYNC sync:pure-token@SYNC)",
}
# Where ours differ on purpose: they follow the syntax line that people are shown. Redis names no
# arguments for containers.
DIFFERENT_ARGUMENTS = {
    "xcfgset": "key:key#0 seconds:integer@IDMP-DURATION? entries@IDMP-MAXSIZE?",
    "client|kill": (
        "filter:oneof(ip:port new-format:oneof*(client-id:integer@ID "
        "client-type:oneof@TYPE(normal:pure-token@NORMAL master:pure-token@MASTER "
        "replica:pure-token@REPLICA pubsub:pure-token@PUBSUB) username@USER ip:port@ADDR "
        "ip:port@LADDR skipme:oneof@SKIPME(yes:pure-token@YES no:pure-token@NO) "
        "maxage:integer@MAXAGE))"
    ),
    "lolwut": "version_argument:block?(version:integer@VERSION argument?*)",
    "debug": "subcommand argument?*",
}
# Commands that Redis does not have.
OURS_ALONE = {
    "backup", "cluster|myshardid", "cluster|peer", "cluster|promise", "cluster|relay",
    "cluster|seen", "cluster|copyslots", "cluster|ackslots", "cluster|handslots",
    "cluster|returnslots", "cluster|migration",
    "tabort", "tack", "tappend", "tappendmany", "tappendonce", "tappev", "tblocks", "tcancel",
    "tcomplete", "tcreate", "textend", "tgroup", "tinfo", "tmread", "tnack", "tpeek", "tpolicy",
    "tposition", "trange", "tread", "tredrive", "trenew", "treserve", "trestore", "tschedule",
    "tscheduled", "tseal", "tseek",
}  # fmt: skip
EXPECTED = LATER_ARGUMENTS | DIFFERENT_ARGUMENTS


def plain(value: Any) -> Any:
    """A reply without bytes and sets."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return {plain(name): plain(part) for name, part in value.items()}
    if isinstance(value, set):
        return sorted(map(plain, value))
    return list(map(plain, value)) if isinstance(value, list | tuple) else value


def written(arguments: list[dict[str, Any]]) -> str:
    return " ".join(map(written_argument, arguments))


def written_argument(argument: dict[str, Any]) -> str:
    kind, token, flags = argument["type"], argument.get("token"), argument.get("flags", ())
    parts = argument.get("arguments")
    return "".join(
        (
            argument["name"],
            "" if kind == "string" else f":{kind}",
            "" if token is None else f"@{token}",
            "?" if "optional" in flags else "",
            "*" if "multiple" in flags else "",
            f"#{argument['key_spec_index']}" if "key_spec_index" in argument else "",
            f"({written(parts)})" if parts else "",
        )
    )


def row_of(row: Command) -> dict[str, object]:
    _, arity, flags, first, last, step, categories, tips, specs, _ = plain(details(row))
    return {
        "arity": arity, "flags": flags, "keys": [first, last, step],
        "categories": sorted(categories), "tips": sorted(tips), "key specs": specs,
    }  # fmt: skip


def test_each_row_is_that_of_redis() -> None:
    names = [name for name in RECORDED["rows"] if name in ROWS]
    assert len(names) > 200
    for name in names:
        expected = RECORDED["rows"][name]
        for part in expected:
            if (name, part) in LATER_ROWS:
                assert expected[part] != LATER_ROWS[name, part], f"{name}: {part} is as recorded"
                expected = {**expected, part: LATER_ROWS[name, part]}
        assert row_of(ROWS[name]) == expected, name


def test_arguments_are_those_of_redis() -> None:
    for name in sorted({*RECORDED["arguments"], *EXPECTED} & {*ROWS}):
        recorded = written(RECORDED["arguments"].get(name, []))
        expected = EXPECTED.get(name, recorded)
        assert name not in EXPECTED or not recorded or expected != recorded, (
            f"{name} is as recorded"
        )
        assert written(plain(docs(ROWS[name])).get("arguments", [])) == expected, name


def test_every_shared_command_is_compared() -> None:
    ours_alone = {name for name in ROWS if name not in RECORDED["rows"]} - set(EXPECTED)
    # test_introspection_against_redis compares ACL, which is not recorded, with a live server.
    assert {name for name in ours_alone if name.partition("|")[0] != "acl"} == OURS_ALONE
