"""A second, restricted user: the rules that a play gives it, and a naive model of what they refuse.

Rules change while the user's clients have requests on the way, queued requests and blocked reads.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

Request = tuple[bytes, ...]

USER = b"limited"
LOGIN: Request = (b"AUTH", USER, b"any password")
READ, WRITE = 1, 2
# Roles that do not fit: they rely on a whole transaction, or on the success of a request.
UNFIT = {"counter", "pairer", "hoarder", "scanner", "bulky"}
RULER = "ruler"

NO_KEY = "NOPERM No permissions to access a key"
CHANGED = (
    "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC "
    "call. This command is no longer allowed for the following reason: no permission to "
)
KEYLESS = {
    "ping", "select", "config|set", "save", "bgsave", "bgrewriteaof", "time", "multi", "exec",
    "discard", "unwatch", "flushdb", "flushall", "swapdb", "client|unblock", "acl|setuser",
}  # fmt: skip
# What a command does with its first key, if that is its only one.
USES = {
    READ: {"get", "pttl", "tscheduled", "tseek", "tblocks", "trange", "tread"},
    WRITE: {
        "append", "pexpire", "pexpireat", "persist", "tpolicy", "xclaim", "xautoclaim", "xnack",
        "tgroup", "tnack", "textend", "tschedule", "tcancel", "xdelex", "xackdel", "xtrim",
        "tappendonce", "xcfgset", "tack", "xack", "xadd", "xdel",
        "tappend", "tappev", "xgroup|create", "xgroup|destroy", "xgroup|setid",
        "xgroup|delconsumer",
    },
    READ | WRITE: {"incr", "move", "tread|group"},
    0: {"xlen"},
}  # fmt: skip
USE_OF = {name: use for use, names in USES.items() for name in names}
CONTAINERS = {b"xgroup", b"config", b"client", b"acl"}

# The words from which rules are drawn.
COMMANDS = (
    b"tappend xadd tread tread|group xreadgroup trange tblocks set get del xdel tack xack xtrim "
    b"xgroup xgroup|create xclaim watch multi exec tappev flushdb rename copy tappendmany"
).split()
KEYS = b"~* ~s* ~s0 ~s1* ~k* ~k0 %R~s* %W~s* %W~s0 %R~s0 %R~k* %W~k* %RW~k1 %W~* %R~*".split()


@dataclass(slots=True)
class Selector:
    """One list of rules, in order."""

    commands: list[bytes] = field(default_factory=list)
    keys: dict[bytes, int] = field(default_factory=dict)

    def allows_command(self, name: str) -> bool:
        allowed = False
        for rule in self.commands:
            if rule[1:].decode() in ("@all", name, name.partition("|")[0]):
                allowed = rule.startswith(b"+")
        return allowed

    def allows_key(self, key: bytes, use: int) -> bool:
        text = key.decode("latin-1")
        return any(
            use & ~pattern_use == 0 and fnmatchcase(text, pattern.decode("latin-1"))
            for pattern, pattern_use in self.keys.items()
        )

    def words(self) -> list[bytes]:
        signs = {READ: b"%R~", WRITE: b"%W~", READ | WRITE: b"~"}
        return [*self.commands, *(signs[use] + pattern for pattern, use in self.keys.items())]


def drawn(chance: random.Random) -> Selector:
    """Rules by chance, many of which allow the usual requests."""
    made = Selector([chance.choice([b"+@all"] * 5 + [b"-@all"])])
    sign = b"-" if made.commands == [b"+@all"] else b"+"
    for name in chance.sample(COMMANDS, chance.choice([0, 1, 3, 8])):
        made.commands.append((sign if chance.random() < 0.8 else b"+") + name)
    for word in chance.sample(KEYS, chance.choice([1, 1, 2, 4])):
        mark, _, pattern = word.partition(b"~")
        use = {b"%R": READ, b"%W": WRITE}.get(mark, READ | WRITE)
        made.keys[pattern] = made.keys.get(pattern, 0) | use
        if made.keys.get(b"*") == READ | WRITE:  # no pattern may follow it
            made.keys = {b"*": READ | WRITE}
            break
    return made


def new_rules(chance: random.Random) -> Request:
    """ACL SETUSER with rules in place of all earlier ones."""
    words = [b"reset", b"on", b"nopass", *drawn(chance).words()]
    if chance.random() < 0.3:
        words.append(b"(" + b" ".join(drawn(chance).words()) + b")")
    return b"ACL", b"SETUSER", USER, *words


def parsed(request: Request) -> list[Selector]:
    """The selectors of such a request."""
    found = [Selector()]
    for word in request[6:]:
        parts = word[1:-1].split() if word.startswith(b"(") else [word]
        if word.startswith(b"("):
            found.append(Selector())
        for part in parts:
            if part[:1] in b"+-":
                found[-1].commands.append(part)
            else:
                mark, _, pattern = part.partition(b"~")
                found[-1].keys[pattern] = {b"%R": READ, b"%W": WRITE}.get(mark, READ | WRITE)
    return found


def name_of(request: Request) -> str:
    """The command's name in rules."""
    name = request[0].lower()
    if name in CONTAINERS:
        name += b"|" + request[1].lower()
    if name == b"tread" and b"GROUP" in request[4:]:
        name += b"|group"
    return name.decode()


def keys_of(request: Request) -> list[tuple[bytes, int]]:
    """The keys of a request, each with its use."""
    name = name_of(request)
    if name in KEYLESS:
        return []
    if name == "set":
        return [(request[1], READ | WRITE if b"GET" in request[3:] else WRITE)]
    if name in ("del", "watch", "exists"):
        return [(key, WRITE if name == "del" else 0) for key in request[1:]]
    if name in ("rename", "renamenx", "copy"):
        return [(request[1], READ if name == "copy" else READ | WRITE), (request[2], WRITE)]
    if name == "xreadgroup":
        words = request[request.index(b"STREAMS") + 1 :]
        return [(key, READ) for key in words[: len(words) // 2]]
    if name == "tappendmany":
        return [(key, WRITE) for key in request[2 : 2 + int(request[1])]]
    return [(request[2 if name.startswith("xgroup|") else 1], USE_OF[name])]


def refusal(selectors: list[Selector], request: Request, *, at_exec: bool = False) -> str | None:
    """The error of a request that no selector allows as a whole."""
    name, keys = name_of(request), keys_of(request)
    willing = [selector for selector in selectors if selector.allows_command(name)]
    if any(all(one.allows_key(key, use) for key, use in keys) for one in willing):
        return None
    if at_exec:
        what = "touch the specified keys" if willing else "execute the command or subcommand"
        return CHANGED + what
    if willing:
        return NO_KEY
    return f"NOPERM User {USER.decode()} has no permissions to run the '{name}' command"
