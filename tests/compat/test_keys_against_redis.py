"""Strings, expiry and keys of any type compared with redis-server 7.0: random conversations.

A conversation is a list of requests, sent at once to two emptied servers; every reply has to be the
same, and so has what is there afterwards. Moments are far away or long past, so that no reply
depends on the clock, and chance itself (RANDOMKEY) and the order of SCAN are left out. Hypothesis
makes a conversation that differs as short as it can.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.client import RawClient
from tests.support.effort import examples
from tests.support.resp import Reply, Simple, show
from tests.support.server import Server

Words = list[str]

EXAMPLES = examples(150)
EVENT_EXAMPLES = examples(100)
LENGTH_MAX = 40
DATABASES = ("0", "1", "2")
STREAM_ADD = "XADD"

KEYS = st.sampled_from(["a", "b", "c"])
FAR_S, FAR_MS = 33177117420, 33177117420500

INTEGERS = st.sampled_from(
    ["0", "1", "-1", "7", "-0", "01", "+1", " 1", "", "x", "1.0", "20000", "-20000",
     "9223372036854775807", "-9223372036854775808", "9223372036854775808",
     "9223372036854775", "9223372036854776", "-9223372036854776"]
)  # fmt: skip
RANGE_ENDS = st.sampled_from(
    ["0", "1", "2", "-1", "-2", "5", "-60", "60", "x", "", "9223372036854775807",
     "-9223372036854775808", "9223372036854775808"]
)  # fmt: skip
OFFSETS = st.sampled_from(["0", "1", "3", "60", "-1", "x", "536870912", "9223372036854775807"])
FLOATS = st.one_of(
    st.sampled_from(
        ["3.0e3", "1e400", "1e5000", "-1e-400", "inf", "-inf", "nan", ".5", "5.", "0x1p4", "1.5 ",
         "-0", "0.1", "1e", "12345678901234567890.12345"]
    ),
    st.floats(allow_nan=False).map(repr),
    # Redis 8.6, unlike 7.0, has a text of more than 40 bytes at a key of one byte as `raw`.
    st.decimals(-(10**19), 10**19, places=18, allow_nan=False).map(str),
)  # fmt: skip
RELATIVE = ("1", "7", "20000", "9223372036854775", "9223372036854776", "9223372036854775807")
# A text of 41 to 44 bytes is `raw` for Redis 8.6 and `embstr` for Redis 7.0.
LETTERS = "v\x00\r\n\xff"
VALUES = st.one_of(
    INTEGERS, st.text(LETTERS, max_size=40), st.text(LETTERS, min_size=45, max_size=50)
)
# Each with what a time in that unit may be: wrong, past, or a moment that no test lives to see.
MOMENTS = st.one_of(
    st.tuples(st.just("EX"), st.sampled_from(["0", "-1", "x", "9223372036854776"])),
    st.tuples(st.just("PX"), st.sampled_from(["0", "-1", "x", "9223372036854775807"])),
    st.tuples(st.just("EXAT"), st.sampled_from([str(FAR_S), str(FAR_S + 1), "1", "0", "x"])),
    st.tuples(st.just("PXAT"), st.sampled_from([str(FAR_MS), str(FAR_MS + 1), "1", "-1"])),
    st.tuples(st.just("exat"), st.just(str(FAR_S + 2))),
)
SET_WORDS = st.sampled_from(["NX", "XX", "GET", "KEEPTTL", "get", "FOO", "EX"])
SET_OPTIONS = st.lists(
    st.one_of(st.tuples(SET_WORDS), MOMENTS),
    max_size=3,
)
GETEX_OPTIONS = st.lists(
    st.one_of(st.tuples(st.sampled_from(["PERSIST", "PX", "NX", "persist"])), MOMENTS), max_size=2
)
CONDITIONS = st.lists(st.sampled_from(["NX", "XX", "GT", "LT", "gt", "FOO"]), max_size=2)
DB_WORDS = st.sampled_from([*DATABASES, *DATABASES, "16", "-1", "x", "99999999999"])


def flat(words: object) -> Words:
    """Nested tuples and lists of words, flattened in order."""
    if isinstance(words, str):
        return [words]
    assert isinstance(words, list | tuple)
    return [word for part in words for word in flat(part)]


def request(*parts: object) -> st.SearchStrategy[Words]:
    """A request of fixed words and of drawn ones."""
    drawn = [st.just(part) if isinstance(part, str) else part for part in parts]
    return st.tuples(*drawn).map(flat)  # type: ignore[arg-type]


REQUESTS = st.one_of(
    request("SET", KEYS, VALUES),
    request("SET", KEYS, VALUES, SET_OPTIONS),
    request("GET", KEYS),
    request("GETDEL", KEYS),
    request("GETEX", KEYS, GETEX_OPTIONS),
    request("SETNX", KEYS, VALUES),
    request(st.sampled_from(["SETEX", "PSETEX"]), KEYS, INTEGERS, VALUES).filter(
        lambda words: words[2] not in RELATIVE  # moments that depend on the clock
    ),
    request("MSET", st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=3)),
    request("MSET", KEYS, VALUES, KEYS),
    request("MGET", st.lists(KEYS, min_size=1, max_size=3)),
    request("STRLEN", KEYS),
    request("GETSET", KEYS, VALUES),
    request("MSETNX", st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=3)),
    request("MSETNX", KEYS, VALUES, KEYS),
    request(st.sampled_from(["GETRANGE", "SUBSTR"]), KEYS, RANGE_ENDS, RANGE_ENDS),
    request("SETRANGE", KEYS, OFFSETS, VALUES),
    request("INCRBYFLOAT", KEYS, st.one_of(INTEGERS, FLOATS)),
    request("SET", KEYS, FLOATS),
    request("APPEND", KEYS, VALUES),
    request(st.sampled_from(["INCR", "DECR"]), KEYS),
    request(st.sampled_from(["INCRBY", "DECRBY"]), KEYS, INTEGERS),
    request("EXPIRE", KEYS, st.sampled_from(["0", "-1", "x", "9223372036854776"]), CONDITIONS),
    request("PEXPIRE", KEYS, st.sampled_from(["0", "-5", "9223372036854770000"]), CONDITIONS),
    request("EXPIREAT", KEYS, st.sampled_from(["1", str(FAR_S), str(FAR_S + 1)]), CONDITIONS),
    request(
        "PEXPIREAT", KEYS, st.sampled_from([str(FAR_MS), str(FAR_MS + 1), "0"]), CONDITIONS
    ),
    request(st.sampled_from(["PERSIST", "EXPIRETIME", "PEXPIRETIME"]), KEYS),
    request(st.sampled_from(["DEL", "UNLINK", "EXISTS", "TOUCH"]), st.lists(KEYS, max_size=3)),
    request("TYPE", KEYS),
    request(st.sampled_from(["RENAME", "RENAMENX"]), KEYS, KEYS),
    request(
        "COPY", KEYS, KEYS,
        st.lists(st.one_of(st.just("REPLACE"), st.tuples(st.just("DB"), DB_WORDS)), max_size=2),
    ),
    request("MOVE", KEYS, DB_WORDS),
    request("SWAPDB", DB_WORDS, DB_WORDS),
    request("SELECT", st.sampled_from(DATABASES)),
    request("OBJECT", "ENCODING", KEYS),
    request("DBSIZE"),
    request("KEYS", st.sampled_from(["*", "a", "[ab]", "?", "[^a]", "zz*"])),
    request(STREAM_ADD, KEYS, "*", "f", "v"),
    request("XLEN", KEYS),
    request("XGROUP", "CREATE", KEYS, "g", "0"),
    request("XREADGROUP", "GROUP", "g", "alice", "COUNT", "1", "STREAMS", KEYS, ">"),
    request("XPENDING", KEYS, "g"),
    request("XACK", KEYS, "g", "1-1"),
    request("FLUSHDB"),
    request("MULTI"),
    request("EXEC"),
)  # fmt: skip


def with_fixed_ids(requests: list[Words]) -> list[Words]:
    """Entries with ids that both servers take alike: 1-1, 2-1, ... over the conversation."""
    number = 0
    fixed = []
    for words in requests:
        if words[0] == STREAM_ADD:
            number += 1
            words = [*words[:2], f"{number}-1", *words[3:]]
        fixed.append(words)
    return fixed


def last_look() -> list[Words]:
    """Requests that show the contents of the databases."""
    requests: list[Words] = [["DISCARD"]]
    for database in DATABASES:
        requests += [["SELECT", database], ["DBSIZE"]]
        for key in ("a", "b", "c"):
            requests += [[name, key] for name in ("TYPE", "GET", "PEXPIRETIME", "XLEN")]
            requests += [["OBJECT", "ENCODING", key], ["XRANGE", key, "-", "+"]]
            requests += [["XPENDING", key, "g"]]
    return requests


def answers(client: RawClient, requests: list[Words]) -> list[Reply]:
    emptied = [["DISCARD"], ["SELECT", "0"], ["FLUSHALL"]]
    replies = client.pipeline(
        [[word.encode("latin-1") for word in words] for words in emptied + requests]
    )
    assert replies[2] == Simple("OK")
    return replies[3:]


def shown(words: Words, reply: Reply) -> str:
    if words[0] == "KEYS" and isinstance(reply, list):
        return str(sorted(map(show, reply)))
    if words[0] == "EXEC" and isinstance(reply, list):
        return str([sorted(map(show, item)) if isinstance(item, list) else show(item)
                    for item in reply])  # fmt: skip
    return show(reply)


@pytest.mark.parametrize("protocol", [2, 3], ids=["RESP2", "RESP3"])
def test_random_conversations(server: Server, redis_server: Server, protocol: int) -> None:
    with server.client(protocol) as mine, redis_server.client(protocol) as real:

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )
        @given(st.lists(REQUESTS, max_size=LENGTH_MAX).map(with_fixed_ids))
        def play(requests: list[Words]) -> None:
            said = requests + last_look()
            for words, ours, theirs in zip(
                said, answers(mine, said), answers(real, said), strict=True
            ):
                assert shown(words, ours) == shown(words, theirs), words

        play()


def events(client: RawClient, listener: RawClient, requests: list[Words]) -> list[str]:
    """The keyspace events of a conversation, except those that time causes (`expired`)."""
    answers(client, [*requests, ["DISCARD"]])
    client.call("PUBLISH", "end", "of it")
    seen = []
    while True:
        message = listener.read()
        assert isinstance(message, list)
        channel, text = map(show, message[2:])
        if channel == '"end"':
            return [line for line in seen if "expired" not in line]
        seen.append(f"{channel} {text}")


def test_random_conversations_send_the_same_events(server: Server, redis_server: Server) -> None:
    """With new keys and misses, in the same order. Those of streams have
    tests of their own."""
    with (
        server.client() as mine,
        server.client() as my_listener,
        redis_server.client() as real,
        redis_server.client() as real_listener,
    ):
        for client, listener in ((mine, my_listener), (real, real_listener)):
            assert client.call("CONFIG", "SET", "notify-keyspace-events", "EAnm") == Simple("OK")
            listener.send("PSUBSCRIBE", "__keyevent@*", "end")
            listener.read(), listener.read()

        @settings(
            max_examples=EVENT_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck)
        )
        @given(st.lists(REQUESTS.filter(lambda words: words[0][0] != "X"), max_size=LENGTH_MAX))
        def play(requests: list[Words]) -> None:
            assert events(mine, my_listener, requests) == events(real, real_listener, requests)

        try:
            play()
        finally:
            mine.call("CONFIG", "SET", "notify-keyspace-events", "")
            real.call("CONFIG", "SET", "notify-keyspace-events", "")


def test_object_help_has_the_words_of_redis(server: Server, redis_server: Server) -> None:
    with server.client() as mine, redis_server.client() as real:
        assert mine.call("OBJECT", "HELP") == real.call("OBJECT", "HELP")


ROWS = [
    *("del", "unlink", "exists", "touch", "type", "rename", "renamenx", "copy", "move", "swapdb"),
    *("randomkey", "keys", "scan", "dbsize", "flushdb", "flushall"),
    *("expire", "pexpire", "expireat", "pexpireat", "expiretime", "pexpiretime"),
    *("ttl", "pttl", "persist"),
    *("set", "get", "getdel", "getex", "setnx", "setex", "psetex", "mset", "mget", "strlen"),
    *("append", "incr", "decr", "incrby", "decrby"),
    *("object", "object|encoding", "object|freq", "object|idletime", "object|refcount"),
    "object|help",
]


@pytest.mark.parametrize("name", ROWS)
def test_the_rows_of_the_command_table_are_those_of_redis(
    server: Server, redis_server: Server, name: str
) -> None:
    """Arity, flags, key positions and ACL categories; `since` and group from COMMAND DOCS."""
    seen = []
    for where in (server, redis_server):
        with where.client(protocol=2) as client:
            rows = client.call("COMMAND", "INFO", name)
            assert isinstance(rows, list)
            assert isinstance(rows[0], list)
            row = [sorted(map(show, item)) if isinstance(item, list) else item
                   for item in rows[0][:7]]  # fmt: skip
            seen.append(row)
    assert seen[0] == seen[1]


@pytest.mark.parametrize("name", [name for name in ROWS if "|" not in name])
def test_since_and_group_are_those_of_redis(
    server: Server, redis_server: Server, name: str
) -> None:
    seen = []
    for where in (server, redis_server):
        with where.client(protocol=2) as client:
            docs = client.call("COMMAND", "DOCS", name)
            assert isinstance(docs, list)
            assert isinstance(docs[1], list)
            fields = dict(zip(map(show, docs[1][::2]), docs[1][1::2], strict=True))
            seen.append((fields['"since"'], fields['"group"']))
    assert seen[0] == seen[1]
