"""Write commands of Redis 8.10 that do not exist here, and what they do to keys.

A server that follows a Redis runs the commands of that server, and an import those of an AOF. Those
of other types cannot run here; but they may replace a key that is here, or change a string in a way
that this server cannot repeat. A report names the keys that they make.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

STRING = "string"

# They change or make the key at the first place, by its type.
_AT_1 = {
    "list": "lpush rpush linsert lset",
    "set": "sadd",
    "zset": "zadd zincrby geoadd",
    "hash": "hset hsetnx hmset hincrby hincrbyfloat hsetex",
    "array": "arset armset arinsert arring",
    "vectorset": "vadd",
    STRING: "setbit bitfield pfadd pfmerge pfcount",
}
# At the second place.
_AT_2 = {"list": "lmove blmove rpoplpush brpoplpush", "set": "smove", STRING: "pfdebug"}
# They replace whatever the key had.
_REPLACING_AT_1 = {
    "set": "sinterstore sunionstore sdiffstore",
    "zset": "zinterstore zunionstore zdiffstore zrangestore geosearchstore",
}
_REPLACING_AT_2 = {STRING: "bitop"}
# They store their result at the key after an option, and replace what it had.
_STORING = {
    b"sort": ("list", (b"store",)),
    b"georadius": ("zset", (b"store", b"storedist")),
    b"georadiusbymember": ("zset", (b"store", b"storedist")),
}
# They change keys of other types, and make none.
_CHANGING = b"""
    blmpop blpop brpop bzmpop bzpopmax bzpopmin hdel hexpire hexpireat hgetdel hgetex hpersist
    hpexpire hpexpireat lmpop lpop lpushx lrem ltrim rpop rpushx spop srem vrem vsetattr zmpop
    zpopmax zpopmin zrem zremrangebylex zremrangebyrank zremrangebyscore ardel ardelrange arseek
""".split()
# Nothing that a key has.
_WITHOUT_KEYS = (b"function", b"script", b"debug", b"config", b"acl", b"module")
# They run a script or a function: its effects are not in the stream.
SCRIPTS = frozenset((b"eval", b"evalsha", b"fcall", b"eval_ro", b"evalsha_ro", b"fcall_ro"))


class ForeignKeys(NamedTuple):
    """The keys that a command makes or changes, and their type afterwards. `replaces`: they may
    have had any type before."""

    kind: str = ""
    keys: Sequence[bytes] = ()
    replaces: bool = False


class _Keys(NamedTuple):
    """The place of the key of a command; 0 if it makes none."""

    kind: str = ""
    place: int = 0
    replaces: bool = False


_NONE = ForeignKeys()
_COMMANDS = {
    **dict.fromkeys((*_CHANGING, *_WITHOUT_KEYS), _Keys()),
    **{
        name.encode(): _Keys(kind, place, replaces)
        for names_by_kind, place, replaces in (
            (_AT_1, 1, False), (_AT_2, 2, False), (_REPLACING_AT_1, 1, True),
            (_REPLACING_AT_2, 2, True),
        )
        for kind, names in names_by_kind.items()
        for name in names.split()
    },
}  # fmt: skip


def foreign_keys(name: bytes, words: Sequence[bytes]) -> ForeignKeys | None:
    """The keys that this command makes or changes, by its name in lower case; None if the command
    is not known."""
    known = _COMMANDS.get(name)
    if known is not None:
        if not known.place:
            return _NONE
        kind, place, replaces = known
        return ForeignKeys(kind, words[place : place + 1], replaces)
    if name in _STORING:
        kind, options = _STORING[name]
        keys = [words[at + 1] for at in range(2, len(words) - 1) if words[at].lower() in options]
        return ForeignKeys(kind, keys, replaces=True)
    if b"." in name:
        module = name.partition(b".")[0].decode("utf-8", "replace").upper()
        return ForeignKeys(f"module {module}", words[1:2])
    return None
