# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""TPOLICY: what a stream keeps, stored with it and kept by the server.

The policy is kept behind every append (commands/appending) and, for what comes of age with nobody
appending, by the server's timer. What it evicts is evicted as by XTRIM and recorded as what it came
to: applying effects never looks at a policy or a clock.
"""

from libc.stdint cimport UINT64_MAX as NEVER, uint64_t

from millstream.commands.appending cimport BLOCKS_AT_ONCE, keep_policy
from millstream.commands.arguments cimport Args
from millstream.commands.context cimport Context
from millstream.commands.effects cimport stream_of
from millstream.storage.keyspace cimport AT_ONCE, Keyspace
from millstream.storage.policy cimport Policy
from millstream.storage.retention cimport Cut
from millstream.storage.stream cimport Stream

from millstream.commands.effects import effect
from millstream.commands.registry import command
from millstream.commands.replies import OK
from millstream.errors import NO_SUCH_KEY, SYNTAX, CommandError

NO_LIMIT = "ERR syntax error, EXACT and APPROX need a MAXLEN, MAXAGE or MAXBYTES limit"


cdef uint64_t take_limit(Args args, str name) except? 0xffffffffffffffff:
    if args.pos >= args.count:
        raise CommandError(SYNTAX)
    limit = args.take_int()
    if limit < 0:
        raise CommandError(f"ERR The {name} argument must be >= 0.")
    return limit


cdef Policy take_policy(Args args, Policy before):
    """The policy that the words from the cursor on make of the one before: what they do not name
    stays as it is. A word that is there twice counts where it is last."""
    cdef uint64_t max_len = before.max_len
    cdef uint64_t max_age_ms = before.max_age_ms
    cdef uint64_t max_bytes = before.max_bytes
    cdef bint exact = before.exact
    while args.pos < args.count:
        if args.next_is(b"MAXLEN"):
            max_len = take_limit(args, "MAXLEN")
        elif args.next_is(b"MAXAGE"):
            max_age_ms = take_limit(args, "MAXAGE")
        elif args.next_is(b"MAXBYTES"):
            max_bytes = take_limit(args, "MAXBYTES")
        elif args.next_is(b"EXACT"):
            exact = True
        elif args.next_is(b"APPROX"):
            exact = False
        else:
            raise CommandError(SYNTAX)
    return Policy(max_len, max_age_ms, max_bytes, exact)


def policy_reply(Policy policy):
    """A policy as a map, None for none; TPOLICY and TINFO answer it."""
    if policy is None:
        return None
    return {b"maxlen": policy.max_len, b"maxage": policy.max_age_ms, b"maxbytes": policy.max_bytes,
            b"trim": b"exact" if policy.exact else b"approx"}


@command(
    "TPOLICY", arity=-2, flags="write", keys=(1, 1, 1), group="stream",
    summary="Sets or returns the retention policy by which the server trims a stream.",
    syntax="key [MAXLEN n] [MAXAGE ms] [MAXBYTES n] [EXACT|APPROX]",
    complexity="O(n) of evicted blocks",
)
def tpolicy(Context ctx not None, Args args not None):
    cdef Stream stream
    cdef Policy policy
    cdef bytes key
    cdef Cut cut
    args.pos = 2
    take_policy(args, Policy())  # what is malformed is told before what is not there
    stream = ctx.write_stream_at(&args.items[1])
    if stream is None:
        raise CommandError(NO_SUCH_KEY)
    if args.count == 2:
        return policy_reply(stream.policy)
    args.pos = 2
    policy = take_policy(args, Policy() if stream.policy is None else stream.policy)
    if not policy.is_limit() and stream.policy is None and names_no_limit(args):
        raise CommandError(NO_LIMIT)
    key = ctx.db.key_of(&args.items[1])
    set_policy(stream, policy)
    ctx.change((b"POLICY", key, policy.max_len, policy.max_age_ms, policy.max_bytes,
                b"exact" if policy.exact else b"approx"), None, 1)
    if stream.policy is not None:
        keep_policy(ctx, key, stream, BLOCKS_AT_ONCE, True, &cut)
    return OK


cdef bint names_no_limit(Args args):
    return all(word.upper() in (b"EXACT", b"APPROX") for word in args.all()[2:])


cdef int set_policy(Stream stream, Policy policy) except -1:
    stream.policy = policy if policy.is_limit() else None
    return 0


@effect(b"POLICY")
def apply_policy(Keyspace keyspace, int db, list words):
    """POLICY key max-len max-age-ms max-bytes exact|approx."""
    cdef Stream stream = stream_of(keyspace, db, words[0])
    set_policy(stream, Policy(
        int(words[1]), int(words[2]), int(words[3]), words[4] == b"exact"))
    if stream.policy is not None:
        stream.policy.looked_at_ms = keyspace.note_trim(AT_ONCE, db, words[0])


def policy_moment(Context ctx not None, bytes key not None) -> int:
    """A moment noted for the stream at a key has come: evict what its policy does not keep any
    more, and note the next one. Returns how many blocks were dropped."""
    cdef Stream stream = ctx.maintained_stream(key)
    cdef Cut cut
    if stream is None or stream.policy is None:
        return 0
    stream.policy.looked_at_ms = NEVER
    keep_policy(ctx, key, stream, BLOCKS_AT_ONCE, True, &cut)
    return cut.blocks
