"""TPOLICY: the retention policy of a stream, stored with the stream and enforced by the server.

The policy is enforced after every append and, for entries that become too old without an append, by
the server's timer (both in commands/engine/appending). Entries are evicted as by XTRIM, and the
eviction is recorded: applying effects needs neither a policy nor a clock.
"""

from __future__ import annotations

from millstream.commands.engine.policies import trim_by_policy
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.effects import effect
from millstream.commands.runtime.replies import OK
from millstream.commands.table.registry import command
from millstream.errors import NO_SUCH_KEY, SYNTAX, CommandError
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import RetentionPolicy, Stream

NO_LIMIT = "ERR syntax error, EXACT and APPROX need a MAXLEN, MAXAGE or MAXBYTES limit"
NEEDS_EVICT = "ERR HARDLEN, HARDAGE and HARDBYTES need EVICT ACKED or EVICT DONE"
LIMITS = (b"MAXLEN", b"MAXAGE", b"MAXBYTES", b"HARDLEN", b"HARDAGE", b"HARDBYTES")
TRIMS = (b"EXACT", b"APPROX")
EVICTS = (b"ANY", b"ACKED", b"DONE")  # by the numbers of RetentionPolicy.evict


def _take_options(args: Args, before: RetentionPolicy) -> tuple[list[int], bool, int]:
    """The limits in the order of LIMITS, whether to evict single entries, and the number of EVICT,
    after the options from the cursor on; options that are not given keep their values. If an option
    is given twice, the last one counts."""
    limits = [
        *(before.max_len, before.max_age_ms, before.max_bytes),
        *(before.hard_len, before.hard_age_ms, before.hard_bytes),
    ]
    exact, evict = before.exact, before.evict
    while args.remaining:
        word = args.take().upper()
        if word in LIMITS:
            limits[LIMITS.index(word)] = _take_limit(args, word.decode())
        elif word in TRIMS:
            exact = word == b"EXACT"
        elif word == b"EVICT":
            evict = _take_evict(args)
        else:
            raise CommandError(SYNTAX)
    return limits, exact, evict


def _take_evict(args: Args) -> int:
    word = args.take().upper() if args.remaining else b""
    if word not in EVICTS:
        raise CommandError(SYNTAX)
    return EVICTS.index(word)


def _take_policy(args: Args, before: RetentionPolicy) -> RetentionPolicy:
    """The policy that results from the options from the cursor on."""
    limits, exact, evict = _take_options(args, before)
    if not evict and any(limits[3:]):
        raise CommandError(NEEDS_EVICT)
    max_len, max_age_ms, max_bytes, *hard = limits
    return RetentionPolicy(max_len, max_age_ms, max_bytes, exact, evict, hard)


def _take_limit(args: Args, name: str) -> int:
    limit = args.take_int()
    if limit < 0:
        raise CommandError(f"ERR The {name} argument must be >= 0.")
    return limit


def policy_reply(policy: RetentionPolicy | None) -> dict[bytes, int | bytes] | None:
    """A policy as a map, None for none; TPOLICY and TINFO return it. What depends on groups is
    shown if groups matter."""
    if policy is None:
        return None
    reply: dict[bytes, int | bytes] = {
        b"maxlen": policy.max_len,
        b"maxage": policy.max_age_ms,
        b"maxbytes": policy.max_bytes,
        b"trim": b"exact" if policy.exact else b"approx",
    }
    if policy.evict:
        reply[b"evict"] = EVICTS[policy.evict].lower()
        reply[b"hardlen"] = policy.hard_len
        reply[b"hardage"] = policy.hard_age_ms
        reply[b"hardbytes"] = policy.hard_bytes
    return reply


@command(
    "TPOLICY key [MAXLEN n] [MAXAGE ms] [MAXBYTES n] [EXACT|APPROX] [EVICT ANY|ACKED|DONE] "
    "[HARDLEN n] [HARDAGE ms] [HARDBYTES n]",
    "write removes",
    complexity="O(n) of evicted blocks",
)
def tpolicy(ctx: Context, args: Args) -> object:
    """Sets or returns the retention policy by which the server trims a stream."""
    key = args.take()
    options_at = args.pos
    _take_options(args, RetentionPolicy())  # malformed options are refused before a missing key
    stream = ctx.write_stream(key)
    if stream is None:
        raise CommandError(NO_SUCH_KEY)
    if args.count == options_at:
        return policy_reply(stream.policy)
    args.pos = options_at
    policy = _take_policy(args, stream.policy or RetentionPolicy())
    only_trims = all(word.upper() in TRIMS for word in args.all()[options_at:])
    if not policy.is_set() and stream.policy is None and only_trims:
        raise CommandError(NO_LIMIT)
    _set_policy(ctx.keyspace, stream, policy)
    ctx.changed(b"POLICY", key, *_effect_words(policy), event=None)
    if stream.policy is not None:
        trim_by_policy(ctx, key, stream)
    return OK


def _set_policy(keyspace: Keyspace, stream: Stream, policy: RetentionPolicy) -> None:
    stream.policy = policy if policy.is_set() else None
    keyspace.has_rules = keyspace.has_rules or policy.evict != 0


def _effect_words(policy: RetentionPolicy) -> list[bytes | int]:
    words = policy.dump()
    words[3] = b"exact" if policy.exact else b"approx"
    return words


@effect(b"POLICY")
def apply_policy(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """POLICY key max-len max-age-ms max-bytes exact|approx [evict, hard-len, hard-age-ms and
    hard-bytes]."""
    key, max_len, max_age_ms, max_bytes, trim, *others = words
    stream = keyspace.databases[db_index].stream(key)
    if stream is None:
        raise ValueError(f"key {key!r} has no stream")
    numbers = [int(word) for word in others]
    policy = RetentionPolicy.load(
        [int(max_len), int(max_age_ms), int(max_bytes), trim == b"exact", *numbers]
    )
    _set_policy(keyspace, stream, policy)
    if stream.policy is not None:
        keyspace.trim_soon(db_index, key, stream)
