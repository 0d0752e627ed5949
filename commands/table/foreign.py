"""Write commands of Redis 8.10 that do not exist here, and what they do to keys that do.

A server that follows a Redis runs the commands of that server. Those of other types cannot run
here; but they may replace a key that is here, or change a string in a way that this server cannot
repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# The place of a key that gets a value of another type, whatever it had.
_OVERWRITTEN = {
    b"sinterstore": 1, b"sunionstore": 1, b"sdiffstore": 1, b"zinterstore": 1, b"zunionstore": 1,
    b"zdiffstore": 1, b"zrangestore": 1, b"geosearchstore": 1,
}  # fmt: skip
# The place of a key that is a string afterwards.
_STRINGS = {b"setbit": 1, b"bitfield": 1, b"pfadd": 1, b"pfmerge": 1, b"bitop": 2}
# The options before a key that is overwritten.
_STORING = {
    b"sort": (b"store",),
    b"georadius": (b"store", b"storedist"),
    b"georadiusbymember": (b"store", b"storedist"),
}
# These touch no string and no stream: their keys have other types, or are new.
_OTHERS = frozenset(
    b"""
    blmove blmpop blpop brpop brpoplpush bzmpop bzpopmax bzpopmin geoadd hdel hexpire hexpireat
    hgetdel hgetex hincrby hincrbyfloat hmset hpersist hpexpire hpexpireat hset hsetex hsetnx
    linsert lmove lmpop lpop lpush lpushx lrem lset ltrim rpop rpoplpush rpush rpushx sadd smove
    spop srem vadd vrem vsetattr zadd zincrby zmpop zpopmax zpopmin zrem zremrangebylex
    zremrangebyrank zremrangebyscore arset arinsert ardel arrmw arpush
    """.split()
)
# They run a script or a function: its effects are not in the stream.
SCRIPTS = frozenset((b"eval", b"evalsha", b"fcall", b"eval_ro", b"evalsha_ro", b"fcall_ro"))
# Nothing that a key has.
_WITHOUT_KEYS = frozenset((b"function", b"script", b"debug", b"config", b"acl", b"module"))


class ForeignKeys(NamedTuple):
    """The keys that a command changes: those that have another type afterwards, and those that are
    strings."""

    overwritten: Sequence[bytes] = ()
    strings: Sequence[bytes] = ()


_NONE = ForeignKeys()


def foreign_keys(name: bytes, words: Sequence[bytes]) -> ForeignKeys | None:
    """The keys that this command changes, by its name in lower case; None if it is not known."""
    place = _OVERWRITTEN.get(name)
    if place is not None:
        return ForeignKeys(overwritten=words[place : place + 1])
    place = _STRINGS.get(name)
    if place is not None:
        return ForeignKeys(strings=words[place : place + 1])
    options = _STORING.get(name)
    if options is not None:
        return ForeignKeys(
            overwritten=[
                words[at + 1] for at in range(2, len(words) - 1) if words[at].lower() in options
            ]
        )
    if name in _OTHERS or name in _WITHOUT_KEYS or b"." in name:
        return _NONE
    return None
