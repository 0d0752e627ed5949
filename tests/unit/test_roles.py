"""The roles of docs/security.md can do their work with the rules of the table, and no harm."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millstream.commands.access.users import User, Users, changed_user
from millstream.commands.access.verdict import denial
from millstream.commands.table.introspection import find
from millstream.commands.table.loader import load_table
from millstream.commands.table.registry import COMMANDS

load_table()
PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
TABLE = PAGE.partition("\n## Roles\n")[2].partition("\n## ")[0]
ROLES = {
    found[1]: found[2].replace("\\|", "|").split()
    for found in re.finditer(r"^\| (.+?) \| `(on .+?)` \|$", TABLE, re.M)
}
LOGIN = ["PING", "HELLO 3", "CLIENT SETINFO LIB-NAME x", "CLIENT SETNAME x"]
READS = ["XRANGE app:s - +", "XREAD STREAMS app:s 0", "XLEN app:s", "TRANGE app:s - +"]
WORK = {
    "application that reads and writes": [
        *LOGIN, *READS, "XADD app:s * f v", "TAPPEND app:s f v", "SET app:k v", "DEL app:k",
        "XGROUP CREATE app:s g 0", "XREADGROUP GROUP g c STREAMS app:s >", "XACK app:s g 1-1",
        "MULTI", "EXEC", "PUBLISH app:c m", "SUBSCRIBE app:c", "EXPIRE app:k 5",
    ],
    "application that only appends": [
        *LOGIN, "XADD app:s * f v", "TAPPEND app:s f v", "TAPPENDONCE app:s p 1 f v",
    ],
    "application that only reads, without groups": [*LOGIN, *READS, "GET app:k", "SELECT 1"],
    "consumer of groups that exist": [
        *LOGIN, "XREADGROUP GROUP g c STREAMS app:s >", "XACK app:s g 1-1", "XPENDING app:s g",
        "XAUTOCLAIM app:s g c 0 0", "XCLAIM app:s g c 0 1-1", "XINFO GROUPS app:s",
    ],
    "deployment that creates groups": [
        *LOGIN, "XGROUP CREATE app:s g 0 MKSTREAM", "XGROUP DESTROY app:s g", "XINFO STREAM app:s",
    ],
    "`millstream tail` and `top`": [
        *LOGIN, *READS, "INFO", "SCAN 0", "TYPE s", "XINFO STREAM s", "XINFO GROUPS s", "SELECT 1",
    ],
    "redis_exporter, monitoring": [
        *LOGIN, "INFO ALL", "CONFIG GET *", "SLOWLOG GET", "SLOWLOG LEN", "LATENCY LATEST",
        "LATENCY HISTOGRAM", "CLIENT LIST",
    ],
    "replica": ["PSYNC x 1", "REPLCONF ACK 1", "PING"],
    "backup": ["BACKUP"],
}  # fmt: skip
HARM = [
    "FLUSHALL", "FLUSHDB", "SWAPDB 0 1", "CONFIG SET maxmemory 1", "CONFIG REWRITE",
    "ACL SETUSER me on", "ACL LIST", "CLIENT KILL ID 1", "CLIENT PAUSE 1", "DEBUG SLEEP 1",
    "SHUTDOWN", "REPLICAOF NO ONE", "FAILOVER", "MONITOR", "SAVE", "KEYS *", "XADD other * f v",
    "DEL other", "SET other v", "XTRIM other MAXLEN 0", "XGROUP DESTROY other g",
]  # fmt: skip


def user_of(role: str) -> User:
    return changed_user(Users().new(b"u"), [rule.encode() for rule in ROLES[role]])


def is_allowed(user: User, line: str) -> bool:
    words = line.encode().split()
    row = find(words[0])
    assert row is not None, line
    if row.subcommands:
        row = COMMANDS[words[0].lower()].subcommands[words[1].lower()]
    return denial(user, row, words) is None


def test_the_table_has_the_roles() -> None:
    assert ROLES.keys() == WORK.keys()


@pytest.mark.parametrize("role", WORK)
def test_a_role_does_its_work_and_no_harm(role: str) -> None:
    user = user_of(role)
    assert [line for line in WORK[role] if not is_allowed(user, line)] == []
    assert [line for line in HARM if is_allowed(user, line)] == []
    elsewhere = ["GET other", "XRANGE other - +"]
    if role != "`millstream tail` and `top`":
        assert [line for line in elsewhere if is_allowed(user, line)] == []
