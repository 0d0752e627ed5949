"""The roles of docs/security.md, as users of a real server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.client import RawClient
from tests.support.resp import Error, Simple
from tests.support.server import Server

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
TABLE = PAGE.partition("\n## Roles\n")[2].partition("\n## ")[0]
ROLES = {
    found[1]: found[2].replace("\\|", "|")
    for found in re.finditer(r"^\| (.+?) \| `(on .+?)` \|$", TABLE, re.M)
}
PASSWORD = "secret"
# What no role may do. `other` is a key outside of the patterns.
HARM = (
    "FLUSHALL", "FLUSHDB", "SWAPDB 0 1", "CONFIG SET maxmemory 1", "CONFIG REWRITE",
    "ACL SETUSER me on", "ACL LIST", "ACL GETUSER default", "CLIENT KILL ID 1", "CLIENT PAUSE 1",
    "CLIENT NO-EVICT ON", "DEBUG SLEEP 0", "DEBUG RELOAD", "SHUTDOWN", "REPLICAOF NO ONE",
    "SLAVEOF NO ONE", "FAILOVER", "MONITOR", "SAVE", "BGSAVE", "BGREWRITEAOF", "BACKUP",
    "PSYNC ? -1", "KEYS *", "SLOWLOG RESET", "LATENCY RESET", "XADD other * f v",
    "TAPPEND other f v", "DEL other", "SET other v", "XTRIM other MAXLEN 0",
    "XGROUP DESTROY other g", "RESTORE other 0 x", "TRESTORE other other2 x", "PUBLISH other x",
)  # fmt: skip
# What a role needs although others must not have it.
NEEDED = {
    "backup": ("BACKUP",),
    "replica": ("PSYNC ? -1",),
    "Sentinel": ("CONFIG REWRITE", "CLIENT KILL ID 1", "SLAVEOF NO ONE", "PUBLISH other x"),
    "dashboard with `--actions`": ("DEL other", "XTRIM other MAXLEN 0", "XGROUP DESTROY other g"),
}
# Commands of connections, which some versions of client libraries send and others do not.
CONNECTING = {"ping", "hello", "select", "client|setinfo", "client|setname"}
# What a program sends only after an error, while Spark's query waits, while changes are not applied
# yet, or in later versions than Debian's.
NOT_TRIED = {
    "Spark, reading": {"time"},
    "`millstream cdc apply`": {"set"},
    "other commands of `millstream cdc`": {"xrange"},
    "`millstream restore --stream`": {"del"},
    "Spark, writing": {"tappendonce", "tinfo"},
    "redis_exporter, monitoring": {"latency|histogram"},
}


def rules(role: str, prefix: str = "app:") -> list[str]:
    """The rules of a role for keys that begin with `prefix`."""
    return ROLES[role].replace("app:", prefix).split()


def harm(role: str) -> list[str]:
    """The requests that are refused to this role."""
    return [line for line in HARM if line not in NEEDED.get(role, ())]


def in_role(role: str) -> str:
    """The name of the user with this role."""
    return re.sub(r"\W+", "-", role)


@contextmanager
def user_of(server: Server, role: str, prefix: str = "app:") -> Iterator[str]:
    """A user of the server with this role; the login for a URL. At the end of the block: no command
    of the user was refused, the server has got each command that the rules name, and the user is
    refused everything harmful."""
    with server.client() as admin:
        add_user(admin, role, prefix)
        admin.call("CONFIG", "RESETSTAT")
        try:
            yield f"{in_role(role)}:{PASSWORD}@"
            check(server, role)
        finally:
            admin.call("ACL", "DELUSER", in_role(role))


def check(server: Server, role: str) -> None:
    """The user with this role has used its rights, and was refused nothing; it has no others."""
    with server.client() as admin:
        called = {name.removeprefix("cmdstat_") for name in admin.info("commandstats")}
        found = refusals(admin, role)
        assert not found, f"refused to the role {role}: {found}"
        left = unused(role, called)
        assert not left, f"rights that the role {role} did not use: {left}"
        allowed = allowed_harm(server, role)
        assert not allowed, f"allowed to the role {role}: {allowed}"


def add_user(admin: RawClient, role: str, prefix: str = "app:") -> None:
    reply = admin.call("ACL", "SETUSER", in_role(role), "reset", *rules(role, prefix))
    assert reply == Simple("OK"), reply
    admin.call("ACL", "LOG", "RESET")


def refusals(admin: RawClient, role: str) -> list[object]:
    """The entries of ACL LOG about the user with this role."""
    entries = admin.call("ACL", "LOG", "-1")
    assert isinstance(entries, list)
    return [entry for entry in entries if in_role(role).encode() in entry]  # type: ignore[operator]


def unused(role: str, called: set[str]) -> list[str]:
    """The commands that the rules allow by name, and that were not called."""
    named = {rule[1:] for rule in ROLES[role].split() if rule[:1] == "+" and rule[1:2] != "@"}
    calls = called | {name.partition("|")[0] for name in called}
    return sorted(named - CONNECTING - NOT_TRIED.get(role, set()) - calls)


def allowed_harm(server: Server, role: str) -> list[str]:
    """The harmful requests that are not refused to the user with this role."""
    found = []
    for line in harm(role):
        with server.client() as client:
            client.send("AUTH", in_role(role), PASSWORD)
            client.send(*line.split())
            assert client.read() == Simple("OK")
            reply = client.read()
            if not (isinstance(reply, Error) and reply.text.startswith("NOPERM")):
                found.append(line)
    return found
