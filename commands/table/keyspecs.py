"""What COMMAND says beyond a command's own row: how it uses its keys, and tips for clients.

Cluster-aware clients and proxies read these words of Redis: RO, RW, OW (overwrites), RM (removes);
access, update, insert, delete; how to split a request over shards and to put the answers together.
Most follow from the row's flags; the names here are those for which they do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from millstream.commands.table.registry import Command


class KeySpec(NamedTuple):
    """Keys that are used in one way: from `first` to `last` (relative to first; negative: from the
    end) by `step`; or after the word `keyword`, the first half of the words; or the number of keys
    that the word at `first` gives (`counted`), after it."""

    flags: str
    first: int
    last: int
    step: int
    keyword: str = ""
    counted: bool = False


WRITES, READS, LOOKS = "RW update", "RO access", "RO"

KEY_FLAGS = {
    "append": "RW insert",
    "decr": "RW access update",
    "decrby": "RW access update",
    "delex": "RW delete variable_flags",
    "del": "RM delete",
    "exists": LOOKS,
    "getdel": "RW access delete",
    "getex": "RW access update",
    "incr": "RW access update",
    "getset": "RW access update",
    "incrby": "RW access update",
    "incrbyfloat": "RW access update",
    "increx": "RW access update",
    "memory|usage": LOOKS,
    "move": "RW access update",
    "mset": "OW update",
    "msetex": "OW update",
    "msetnx": "OW insert",
    "object|encoding": LOOKS,
    "object|freq": LOOKS,
    "object|idletime": LOOKS,
    "object|refcount": LOOKS,
    "psetex": "OW update",
    "restore": "OW update",
    "set": "RW access update variable_flags",
    "setex": "OW update",
    "setnx": "OW insert",
    "setrange": "RW update",
    "strlen": LOOKS,
    "tappendmany": "RW update",
    "touch": LOOKS,
    "type": LOOKS,
    "unlink": "RM delete",
    "watch": LOOKS,
    "xackdel": "RW update delete",
    "xautoclaim": "RW delete",
    "xdel": "RW delete",
    "xdelex": "RW delete",
    "xgroup|create": "RW insert",
    "xgroup|createconsumer": "RW insert",
    "xgroup|delconsumer": "RW delete",
    "xgroup|destroy": "RW delete",
    "xlen": LOOKS,
    "xreadgroup": READS,
    "xtrim": "RW delete",
}
# The second key of commands that use their two in different ways.
SECOND_KEY = {
    "copy": ("RO access", "OW update"),
    "rename": ("RW access delete", "OW update"),
    "renamenx": ("RW access delete", "OW insert"),
}
# Keys follow this word, which is searched from that position on.
KEYWORD = {"xread": ("STREAMS", 1), "xreadgroup": ("STREAMS", 4)}

# How many keys there are stands in the word at this position, before them; then their step.
KEY_COUNT = {"eval": (2, 1), "evalsha": (2, 1), "msetex": (1, 2), "tappendmany": (1, 1)}

_ALL_SHARDS, _ALL_NODES = "request_policy:all_shards", "request_policy:all_nodes"
_MANY_KEYS = "request_policy:multi_shard"
_SUM, _ALL_OK, _SPECIAL = (
    "response_policy:agg_sum", "response_policy:all_succeeded", "response_policy:special",
)  # fmt: skip
_VARIES, _ANY_ORDER = "nondeterministic_output", "nondeterministic_output_order"

TIPS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("del", "exists", "touch", "unlink"), (_MANY_KEYS, _SUM)),
    **dict.fromkeys(
        (
            "client|info", "client|list", "dump", "lastsave", "object|encoding", "object|freq",
            "object|idletime", "object|refcount", "pttl", "tappend", "tappev", "time", "ttl",
            "xadd", "xautoclaim", "xclaim", "xinfo|consumers", "xpending", "xtrim",
        ),
        (_VARIES,),
    ),
    **dict.fromkeys(
        ("command", "command|docs", "command|info", "command|list", "module|list"), (_ANY_ORDER,)
    ),
    **dict.fromkeys(("flushall", "flushdb", "function|flush", "ping"), (_ALL_SHARDS, _ALL_OK)),
    **dict.fromkeys(
        ("latency|doctor", "latency|graph", "latency|histogram", "latency|history",
         "latency|latest"),
        (_VARIES, _ALL_NODES, _SPECIAL),
    ),
    **dict.fromkeys(
        (
            "client|setinfo", "client|setname", "config|resetstat", "config|rewrite", "config|set",
            "script|flush", "script|load", "slowlog|reset",
        ),
        (_ALL_NODES, _ALL_OK),
    ),
    "latency|reset": (_ALL_NODES, _SUM),
    "script|exists": (_ALL_SHARDS, "response_policy:agg_logical_and"),
    "script|kill": (_ALL_SHARDS, "response_policy:one_succeeded"),
    **dict.fromkeys(
        ("info", "memory|doctor", "memory|malloc-stats", "memory|stats"),
        (_VARIES, _ALL_SHARDS, _SPECIAL),
    ),
    "dbsize": (_ALL_SHARDS, _SUM),
    "keys": (_ALL_SHARDS, _ANY_ORDER),
    "memory|purge": (_ALL_SHARDS, _ALL_OK),
    "mget": (_MANY_KEYS,),
    **dict.fromkeys(("mset", "msetex"), (_MANY_KEYS, _ALL_OK)),
    "randomkey": (_ALL_SHARDS, _SPECIAL, _VARIES),
    "scan": (_VARIES, "request_policy:special", _SPECIAL),
    "slowlog|get": (_ALL_NODES, _VARIES),
    "slowlog|len": (_ALL_NODES, _SUM, _VARIES),
    "wait": (_ALL_SHARDS, "response_policy:agg_min"),
    "waitaof": (_ALL_SHARDS, "response_policy:agg_min"),
}  # fmt: skip


def _set_flags(words: list[bytes]) -> str:
    options = {word.upper() for word in words[3:]}
    if b"GET" in options:
        return "RW access update"
    return "RW update" if options & COMPARING_SET_WORDS else "OW update"


def _delex_flags(words: list[bytes]) -> str:
    return "RW delete" if len(words) > 2 else "RM delete"


COMPARING_SET_WORDS = frozenset({b"IFEQ", b"IFNE", b"IFDEQ", b"IFDNE"})
# Commands that use their key in one way or another by their options.
VARIABLE_FLAGS = {"set": _set_flags, "delex": _delex_flags}


def key_specs(row: Command) -> list[KeySpec]:
    """How a command uses its keys; nothing for one without any."""
    if row.name in KEYWORD:
        word, start = KEYWORD[row.name]
        return [KeySpec(KEY_FLAGS.get(row.name, READS), start, -1, 1, word)]
    if row.name in KEY_COUNT:
        position, step = KEY_COUNT[row.name]
        flags = KEY_FLAGS.get(row.name, "RW access update")
        return [KeySpec(flags, position, 0, step, "", True)]
    first, last, step = row.keys
    if not first:
        return []
    if row.name in SECOND_KEY:
        one, other = SECOND_KEY[row.name]
        return [KeySpec(one, first, 0, 1), KeySpec(other, first + 1, 0, 1)]
    by_flags = WRITES if "write" in row.flags else READS
    flags = KEY_FLAGS.get(row.name, by_flags)
    return [KeySpec(flags, first, last - first if last >= 0 else last, step)]


def keyword_positions(spec: KeySpec, words: list[bytes]) -> list[int]:
    """Where keys stand after a keyword, as clients find them with the key spec: options and ids are
    not looked at. ValueError without the word or without keys."""
    names = [word.upper() for word in words[:-1]]
    at = names.index(spec.keyword.encode(), spec.first) + 1
    count = (len(words) - at) // 2
    if not count:
        raise ValueError(f"{spec.keyword} without keys")
    return list(range(at, at + count))


def keys_with_flags(row: Command, words: list[bytes]) -> Iterator[tuple[bytes, list[str]]]:
    """Each key of a request and the words that say how it is used there."""
    specs = key_specs(row)
    if row.name in KEYWORD:
        positions = keyword_positions(specs[0], words)
    else:
        positions = row.key_positions(words)
    for number, position in enumerate(positions):
        spec = specs[min(number, len(specs) - 1)]
        flags = spec.flags.split()
        if "variable_flags" in flags:
            flags = VARIABLE_FLAGS[row.name](words).split()
        yield words[position], flags
