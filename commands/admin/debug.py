"""DEBUG: for tests of clients and servers. Applications should not use it.

Only subcommands with a meaning for this server exist. Those in NOTHING_TO_DO are switches of Redis'
internals; the reply is OK because test suites set them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from millstream.commands.generic.keys import alive
from millstream.commands.generic.strings import put_string
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import OK, Raw, Several, Simple, Verbatim
from millstream.commands.table.containers import wrong_subcommand
from millstream.commands.table.registry import CommandGroup
from millstream.errors import LOADING, NO_SUCH_KEY, CommandError, shown
from millstream.glob import matcher
from millstream.storage.keyspace.database import Database
from millstream.storage.streams.stream import Stream

command = CommandGroup("server")

RELOAD_OPTIONS = "ERR DEBUG RELOAD only supports the MERGE, NOFLUSH and NOSAVE options."
NOFLUSH_ALONE = "ERR DEBUG RELOAD NOFLUSH needs MERGE here: keys that are there would be lost"
NO_DIGEST = b"0" * 40
MATCHED_MAX = 1_000_000
POPULATE_MAX = 10_000_000

Words = Sequence[bytes]
Handler = Callable[["Context", Words], object]


if TYPE_CHECKING:
    from millstream.commands.admin.cluster import NodeView

    class JournalDirective(Protocol):
        appendonly: bool

    class LoadingState(Protocol):
        @property
        def loading(self) -> bool: ...

    class DebugHost(Protocol):
        @property
        def config(self) -> JournalDirective: ...
        @property
        def persistence(self) -> LoadingState: ...
        @property
        def cluster(self) -> NodeView | None: ...

        def log(self, message: str) -> None: ...

        def sleep(self, seconds: float) -> None:
            """Blocks the whole server for this time."""

        def reload(self, *, save: bool, flush: bool) -> None:
            """Loads the data on the disk into the running server: after a snapshot (save), into
            emptied databases (flush) or over the existing data."""


def _sleep(ctx: Context[DebugHost], words: Words) -> object:
    try:
        seconds = float(words[0])
    except ValueError:
        seconds = 0.0
    ctx.server.sleep(max(0.0, seconds))
    return OK


def _reload(ctx: Context[DebugHost], words: Words) -> object:
    options = {word.upper() for word in words}
    if not options <= {b"MERGE", b"NOFLUSH", b"NOSAVE"}:
        raise CommandError(RELOAD_OPTIONS)
    if b"NOFLUSH" in options and b"MERGE" not in options:
        raise CommandError(NOFLUSH_ALONE)
    ctx.server.reload(save=b"NOSAVE" not in options, flush=b"NOFLUSH" not in options)
    return OK


def _loadaof(ctx: Context[DebugHost], words: Words) -> object:
    if not ctx.server.config.appendonly:
        raise CommandError("ERR DEBUG LOADAOF needs a journal: appendonly is off")
    ctx.server.reload(save=False, flush=True)
    return OK


def _log(ctx: Context[DebugHost], words: Words) -> object:
    ctx.server.log(f"DEBUG LOG: {shown(words[0])}")
    return OK


def _cluster_stop(ctx: Context[DebugHost], words: Words) -> object:
    node = ctx.server.cluster
    if node is None or node.moving is None:
        raise CommandError("ERR this server is not a node of a cluster in etcd")
    node.moving.stop_at([word.lower().decode("ascii", "replace") for word in words])
    return OK


def _set_active_expire(ctx: Context, words: Words) -> object:
    ctx.keyspace.active_expiry = words[0] not in (b"0", b"")
    ctx.keyspace.expiry_noted = True
    return OK


def _is_hidden(ctx: Context, key: bytes) -> bool:
    """True if the slot of a key moves: words of DEBUG are not checked as keys of requests are."""
    return bool(ctx.keyspace.hidden_slots) and ctx.keyspace.slot_states.hides(key)


def _digest(ctx: Context, words: Words) -> object:
    """A digest of all keys that does not depend on their order."""
    from hashlib import sha1

    total = 0
    for db in ctx.keyspace.databases:
        for key in alive(db, list(db.keys())):
            digest = key_digest(db, key)
            named = sha1(b"%d %s %s" % (db.index, key, digest), usedforsecurity=False)
            total ^= int.from_bytes(named.digest(), "big")
    return Simple(b"%040x" % total)


def _digest_value(ctx: Context, words: Words) -> object:
    digests = (NO_DIGEST if _is_hidden(ctx, key) else key_digest(ctx.db, key) for key in words)
    return [Simple(digest) for digest in digests]


def key_digest(db: Database, key: bytes) -> bytes:
    """The digest of a key's value as 40 hexadecimal digits, zeros for a missing key. For a stream
    it covers the entries, the last ID and the groups with their pending entries."""
    from hashlib import sha1

    value = db.get(key)
    if value is None:
        return NO_DIGEST
    digest = sha1(usedforsecurity=False)
    if isinstance(value, bytes):
        digest.update(b"string %d " % len(value) + value)
    else:
        _digest_stream(digest.update, value)
    if db.expiry_ms(key):
        digest.update(b"!!expire!!")
    return digest.hexdigest().encode()


def _digest_stream(update: Callable[[bytes], None], stream: Stream) -> None:
    for ms, seq, words in stream.range():
        update(b"%d-%d" % (ms, seq))
        for word in words:
            update(b" %d " % len(word) + word)
    update(b"last %d-%d" % stream.last_id)
    for name, group in sorted(stream.groups.items()):
        update(b"group %d " % len(name) + name)
        update(b" %d-%d " % (group.offset_ms, group.offset_seq))
        for ms, seq, consumer, _, _, deliveries, _, _ in group.pending.rows():
            update(b"%d-%d %s %d " % (ms, seq, consumer, deliveries))


def _object(ctx: Context, words: Words) -> object:
    value = ctx.db.get(words[0])
    if value is None or _is_hidden(ctx, words[0]):
        raise CommandError(NO_SUCH_KEY)
    idle_s = ctx.db.idle_s(words[0])
    if isinstance(value, bytes):
        encoding, length = "raw", len(value)
    else:
        encoding, length = "stream", value.memory_bytes
    text = (
        f"Value at:{id(value):#x} refcount:1 encoding:{encoding} serializedlength:{length} "
        f"lru:{max(0, ctx.now_ms // 1000 - idle_s) & 0xFFFFFF} lru_seconds_idle:{idle_s}"
    )
    return Simple(text.encode())


def _stringmatch(ctx: Context, words: Words) -> object:
    length = int(words[0]) if words[0].isdigit() else 0
    if length > MATCHED_MAX:
        raise CommandError("ERR value is out of range")
    return 1 if matcher(words[1])(b"a" * length) else 0


def _error(ctx: Context, words: Words) -> object:
    raise CommandError(shown(words[0]).replace("\r", " ").replace("\n", " "))


def _populate(ctx: Context[DebugHost], words: Words) -> object:
    if ctx.server.persistence.loading:
        raise CommandError(LOADING)
    if ctx.write_error is not None:
        raise CommandError(ctx.write_error)
    if not words[0].isdigit() or int(words[0]) > POPULATE_MAX:
        raise CommandError("ERR value is out of range, must be positive")
    prefix = words[1] if len(words) > 1 else b"key"
    size = int(words[2]) if len(words) > 2 and words[2].isdigit() else 0
    for number in range(int(words[0])):
        key = b"%s:%d" % (prefix, number)
        if ctx.db.get(key) is None and not _is_hidden(ctx, key):
            value = b"value:%d" % number
            put_string(ctx, key, value[:size].ljust(size, b"\0") if size else value)
    return OK


BIG_NUMBER = b"1234567999999999999999999999999999999"
ATTRIBUTED = b"Some real reply following the attribute"
# Reply types that no other command uses.
ATTRIBUTE = b"|1\r\n$14\r\nkey-popularity\r\n*2\r\n$7\r\nkey:123\r\n:90\r\n"
PUSH = b">2\r\n$16\r\nserver-cpu-usage\r\n:42\r\n"

# type -> the reply, by the version of the protocol
EXAMPLES: dict[bytes, Callable[[int], object]] = {
    b"string": lambda resp: b"Hello World",
    b"integer": lambda resp: 12345,
    b"double": lambda resp: 3.141,
    b"bignum": lambda resp: BIG_NUMBER if resp == 2 else Raw(b"(" + BIG_NUMBER + b"\r\n"),
    b"null": lambda resp: None,
    b"array": lambda resp: [0, 1, 2],
    b"set": lambda resp: {0, 1, 2},
    b"map": lambda resp: {0: False, 1: True, 2: False},
    b"attrib": lambda resp: ATTRIBUTED if resp == 2 else Several([Raw(ATTRIBUTE), ATTRIBUTED]),
    b"push": lambda resp: Several([Raw(PUSH), b"Some real reply following the push reply"]),
    b"verbatim": lambda resp: Verbatim(b"This is a verbatim\nstring"),
    b"true": lambda resp: True,
    b"false": lambda resp: False,
}


def _protocol(ctx: Context, words: Words) -> object:
    kind = words[0].lower()
    if kind == b"push" and ctx.session.resp == 2:
        raise CommandError("ERR RESP2 is not supported by this command")
    if kind not in EXAMPLES:
        names = "|".join(name.decode() for name in EXAMPLES)
        raise CommandError(
            f"ERR Wrong protocol type name. Please use one of the following: {names}"
        )
    return EXAMPLES[kind](ctx.session.resp)


def _nothing(ctx: Context, words: Words) -> object:
    return OK


# name -> (fewest words, most words or None, what to do, usage, what it does)
Row = tuple[int, int | None, Handler, str, str]
SUBCOMMANDS: dict[bytes, Row] = {
    b"CLUSTER-STOP": (
        0, None, _cluster_stop, "[<step> ...]",
        "Stops moves of slots and elections at these steps; the others continue.",
    ),
    b"DIGEST": (0, 0, _digest, "", "Returns a digest that shows whether two datasets are equal."),
    b"DIGEST-VALUE": (0, None, _digest_value, "<key> [<key> ...]", "The same for single values."),
    b"ERROR": (1, 1, _error, "<string>", "Returns an error with <string> as its message."),
    b"LOADAOF": (0, None, _loadaof, "", "Syncs the journal, empties the server and loads it."),
    b"LOG": (1, 1, _log, "<message>", "Writes <message> to the server's log."),
    b"OBJECT": (1, 2, _object, "<key>", "Low level info about a key and its value."),
    b"POPULATE": (
        1, 3, _populate, "<count> [<prefix>] [<size>]",
        "Creates <count> strings named key:<number>, except where such a key exists.",
    ),
    b"PROTOCOL": (1, 1, _protocol, "<type>", "Returns a value of that type."),
    b"RELOAD": (
        0, None, _reload, "[MERGE] [NOFLUSH] [NOSAVE]",
        "Saves a snapshot, empties the server and loads it. NOSAVE: loads the data on disk. "
        "NOFLUSH MERGE: merges the loaded data into the current data.",
    ),
    b"SET-ACTIVE-EXPIRE": (
        1, 1, _set_active_expire, "<0|1>", "Whether a timer deletes expired keys.",
    ),
    b"SLEEP": (1, 1, _sleep, "<seconds>", "Blocks the whole server for this long."),
    b"STRINGMATCH-LEN": (
        2, 2, _stringmatch, "<length> <pattern>", "Matches a pattern against <length> letters a.",
    ),
}  # fmt: skip
NOTHING_TO_DO = (
    b"CHANGE-REPL-ID", b"CLIENT-ENFORCE-REPLY-LIST", b"DICT-RESIZING", b"PAUSE-CRON",
    b"QUICKLIST-PACKED-THRESHOLD", b"REPLICATE", b"REPLYBUFFER", b"SET-SKIP-CHECKSUM-VALIDATION",
)  # fmt: skip


def _help() -> list[Simple]:
    lines = ["DEBUG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"]
    for name, (_, _, _, usage, meaning) in sorted(SUBCOMMANDS.items()):
        lines += [f"{name.decode()} {usage}".rstrip(), f"    {meaning}"]
    for name in NOTHING_TO_DO:
        lines += [name.decode(), "    Accepted, but has no effect here."]
    lines += ["HELP", "    Prints this help."]
    return [Simple(line.encode()) for line in lines]


@command(
    "DEBUG subcommand [argument ...]",
    "admin noscript loading stale protected audited",
    complexity="O(1), except for subcommands that process all keys",
)
def debug(ctx: Context, args: Args) -> object:
    """A container for debugging commands.

    For tests. DEBUG HELP lists the subcommands; the directive `enable-debug-command` says which
    clients may use it.
    """
    word, *words = args.rest()
    name = word.upper()
    if name == b"HELP" and not words:
        return _help()
    if name in NOTHING_TO_DO:
        return _nothing(ctx, words)
    row = SUBCOMMANDS.get(name)
    if row is None or len(words) < row[0] or (row[1] is not None and len(words) > row[1]):
        raise wrong_subcommand("DEBUG", word)
    return row[2](ctx, words)
