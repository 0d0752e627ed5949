"""Users compared with redis-server 7.0: the same rules give the same verdicts for the same
requests, and what one server writes to a file the other one reads.

ACL DRYRUN asks for a verdict without running anything. The words of a refusal differ between the
versions of Redis, so only its kind is compared: the command, or the key or channel that is lacking.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.client import RawClient
from tests.support.effort import examples
from tests.support.resp import Error, Simple
from tests.support.server import Server, redis_program

EXAMPLES = examples(60)
REQUESTS = [
    request.split()
    for request in (
        "GET a1", "SET a1 v", "SET a1 v GET", "SET b1 v KEEPTTL", "GETSET a1 v", "GETDEL a1",
        "GETEX a1 EX 5", "APPEND b1 v", "STRLEN b1", "INCR ab", "MSET a1 v b1 v", "MGET a1 b1 c",
        "SETRANGE a1 0 v", "GETRANGE a1 0 1", "DEL a1 b1", "UNLINK b1", "EXISTS a1 b1", "TYPE a1",
        "RENAME a1 b1", "RENAMENX b1 a1", "COPY a1 b1", "MOVE a1 1", "EXPIRE a1 5", "TTL a1",
        "PERSIST a1", "TOUCH a1 b1", "DUMP a1", "RESTORE a1 0 x", "OBJECT ENCODING a1", "KEYS *",
        "SCAN 0", "RANDOMKEY", "DBSIZE", "FLUSHALL", "FLUSHDB", "SWAPDB 0 1", "SELECT 0",
        "XADD a1 * f v", "XLEN a1", "XRANGE a1 - +", "XREVRANGE b1 + -", "XDEL a1 1",
        "XTRIM a1 MAXLEN 1",
        "XREAD STREAMS a1 b1 0 0", "XREAD COUNT 1 BLOCK 1 STREAMS a1 0", "XGROUP CREATE a1 g $",
        "XGROUP DESTROY b1 g", "XINFO STREAM a1", "XINFO GROUPS b1", "XPENDING a1 g", "XACK a1 g 1",
        "XREADGROUP GROUP g c STREAMS a1 b1 > >", "XREADGROUP GROUP g c COUNT 1 NOACK STREAMS a1 >",
        "XCLAIM a1 g c 1 1-1", "XAUTOCLAIM a1 g c 1 0", "XSETID a1 1-1", "PUBLISH a1 m",
        "SUBSCRIBE a1 b1", "PSUBSCRIBE a*", "PSUBSCRIBE b1", "UNSUBSCRIBE b1", "PUBSUB CHANNELS",
        "CONFIG GET x", "CONFIG SET a b", "CONFIG RESETSTAT", "CLIENT LIST", "CLIENT ID",
        "CLIENT SETNAME x", "CLIENT KILL a", "INFO", "TIME", "ROLE", "PING", "ECHO x", "AUTH x",
        "HELLO 3", "QUIT", "RESET", "MULTI", "EXEC", "WATCH a1 b1", "UNWATCH", "DISCARD",
        "COMMAND",
        "COMMAND COUNT", "DEBUG SLEEP 0", "SLOWLOG GET", "LATENCY LATEST", "MONITOR",
        "MEMORY USAGE a1",
        "SAVE", "BGSAVE", "BGREWRITEAOF", "LASTSAVE", "SHUTDOWN", "EVAL x 1 a1",
        "EVAL x 0", "EVALSHA x 2 a1 b1", "SCRIPT LOAD x", "ACL LIST", "ACL WHOAMI", "ACL SETUSER x",
    )
]  # fmt: skip
CATEGORIES = [
    "all", "keyspace", "read", "write", "string", "stream", "pubsub", "admin", "fast", "slow",
    "blocking", "dangerous", "connection", "transaction", "scripting", "list", "set",
]  # fmt: skip
COMMANDS = [
    *sorted({request[0].lower() for request in REQUESTS}),
    *("config|get", "config|set", "client|list", "xinfo|stream", "xgroup|create", "acl|whoami"),
]
PATTERNS = st.sampled_from(["*", "a*", "a1", "b*", "?1", "[ab]1", "a[^1]", "\\a1", "*1", "c"])
RULES = st.one_of(
    st.builds("{}@{}".format, st.sampled_from("+-"), st.sampled_from(CATEGORIES)),
    st.builds("{}{}".format, st.sampled_from("+-"), st.sampled_from(COMMANDS)),
    st.builds("{}~{}".format, st.sampled_from(["", "%R", "%W", "%RW"]), PATTERNS),
    PATTERNS.map("&{}".format),
    st.sampled_from(
        ["resetkeys", "resetchannels", "+select|0", "+get|a1", "+publish|a1", "+ping|x"]
    ),
)


def verdicts(client: RawClient, rules: list[str]) -> list[str]:
    """The accepted rules, and the missing permissions of each request."""
    client.call("ACL", "DELUSER", "u")
    found = [show_kind(client.call("ACL", "SETUSER", "u", rule)) for rule in ["reset", *rules]]
    return found + [show_kind(client.call("ACL", "DRYRUN", "u", *words)) for words in REQUESTS]


def show_kind(reply: object) -> str:
    """OK, `error`, or the missing permission with its name."""
    if isinstance(reply, Error):
        return "error"
    if isinstance(reply, Simple):
        return "OK"
    assert isinstance(reply, bytes)
    named = re.search(r"'(.*)' (command|key|channel)", reply.decode())
    assert named is not None, reply
    return f"{named[2]} {named[1]}"


def test_verdicts_are_the_same(server: Server, redis_server: Server) -> None:
    with server.client() as mine, redis_server.client() as real:

        @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(RULES, max_size=8), st.lists(RULES, max_size=3))
        def play(rules: list[str], others: list[str]) -> None:
            selector = [f"({' '.join(others)})"] if others else []
            expected = verdicts(real, [*rules, *selector])
            assert verdicts(mine, [*rules, *selector]) == expected

        try:
            play()
        finally:
            mine.call("ACL", "DELUSER", "u")
            real.call("ACL", "DELUSER", "u")


RULE_SETS = [
    "on >pw ~app:* &news +@all -@dangerous",
    "on nopass %R~in:* %W~out:* +@stream +@connection (~lock:* +set +del)",
    "off ~* -@all +config|get +select|0 resetchannels",
    "on >pw ~* -@all +get +hset +@read +@hash -hdel -lrange +client|tracking -script|debug",
    "on #2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b allkeys +@read +@write",
]


@pytest.mark.parametrize("writer", ["redis", "millstream"])
def test_a_file_of_one_server_is_read_by_the_other(tmp_path: Path, writer: str) -> None:
    file = tmp_path / "users.acl"
    file.write_text("")
    programs = {"redis": redis_program(), "millstream": None}
    reader = "millstream" if writer == "redis" else "redis"
    replies = []
    for name in (writer, reader):
        server = Server(tmp_path / name, {"aclfile": str(file)}, programs[name])
        server.start()
        try:
            with server.client() as client:
                if name == writer:
                    for number, rules in enumerate(RULE_SETS):
                        assert client.call(
                            "ACL", "SETUSER", f"u{number}", *rules.split()
                        ) == Simple("OK")
                    assert client.call("ACL", "SAVE") == Simple("OK")
                replies.append([
                    [show_kind(client.call("ACL", "DRYRUN", f"u{number}", *words))
                     for words in REQUESTS]
                    for number in range(len(RULE_SETS))
                ])  # fmt: skip
                assert client.call("ACL", "LOAD") == Simple("OK")
        finally:
            server.stop()
    assert replies[0] == replies[1]
