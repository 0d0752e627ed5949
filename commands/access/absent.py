"""Commands and categories of Redis 8.10 that are absent here, but may be named in rules.

An aclfile written by Redis names them. Such a rule is stored and shown without effect, because
there is no command that it could allow or deny. Any other unknown name is an error, so that a
misspelled name does not go unnoticed.
"""

from __future__ import annotations

_COMMAND_NAMES = """
    bitcount bitfield bitfield_ro bitop bitpos blmove blmpop blpop brpop brpoplpush bzmpop
    bzpopmax bzpopmin eval_ro evalsha_ro fcall fcall_ro geoadd geodist geohash geopos georadius
    georadius_ro georadiusbymember georadiusbymember_ro geosearch geosearchstore getbit hdel
    hexists hexpire hexpireat hexpiretime hget hgetall hgetdel hgetex hincrby hincrbyfloat hkeys
    hlen hmget hmset hotkeys hpersist hpexpire hpexpireat hpexpiretime hpttl hrandfield hscan
    hset hsetex hsetnx hstrlen httl hvals lcs lindex linsert llen lmove lmpop lpop lpos lpush
    lpushx lrange lrem lset ltrim migrate pfadd pfcount pfdebug pfmerge pfselftest
    restore-asking rpop rpoplpush rpush rpushx sadd scard sdiff sdiffstore setbit sinter
    sintercard sinterstore sismember smembers smismember smove sort sort_ro spop
    srandmember srem sscan sunion sunionstore trimslots vadd vcard vdim
    vemb vgetattr vinfo vismember vlinks vrandmember vrange vrem vsetattr vsim zadd zcard zcount
    zdiff zdiffstore zincrby zinter zintercard zinterstore zlexcount zmpop zmscore zpopmax
    zpopmin zrandmember zrange zrangebylex zrangebyscore zrangestore zrank zrem zremrangebylex
    zremrangebyrank zremrangebyscore zrevrange zrevrangebylex zrevrangebyscore zrevrank zscan
    zscore zunion zunionstore
"""
_COMMANDS = frozenset(_COMMAND_NAMES.split())

_SUBCOMMAND_NAMES = """
    client|caching client|tracking client|trackinginfo cluster|addslots cluster|addslotsrange
    cluster|delslots cluster|delslotsrange cluster|flushslots cluster|forget cluster|meet
    cluster|replicate cluster|reset cluster|set-config-epoch cluster|setslot
    cluster|slot-stats cluster|syncslots function|delete function|dump function|kill function|list
    function|load function|restore function|stats module|load module|loadex module|unload
    script|debug
"""
_SUBCOMMANDS = frozenset(_SUBCOMMAND_NAMES.split())

# The modules that come with Redis 8: search, JSON, time series, and the probabilistic types.
_MODULES = ("ft.", "json.", "ts.", "bf.", "cf.", "cms.", "topk.", "tdigest.")
_CATEGORIES = frozenset(
    ("search", "json", "timeseries", "bloom", "cuckoo", "cms", "topk", "tdigest")
)


def is_absent_command(name: str) -> bool:
    """True if this is a command of Redis, or a subcommand as ``container|sub``, that is absent
    here. A first argument after an absent command counts as it does in Redis."""
    command = name.partition("|")[0]
    return not name.endswith(("|", ".")) and (
        command in _COMMANDS or name in _SUBCOMMANDS or command.startswith(_MODULES)
    )


def is_absent_category(name: str) -> bool:
    return name in _CATEGORIES
