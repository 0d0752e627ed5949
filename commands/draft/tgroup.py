"""TGROUP: the rules of a consumer group, stored with the group and enforced by the server.

With a TIMEOUT the group is managed: an entry that is not acknowledged within this time is due, and
the next read of the group delivers it again, whatever the dialect of the reader.
"""

from __future__ import annotations

from typing import Any

from millstream.commands.draft.tnack import DELAY_MAX_MS
from millstream.commands.engine.claiming import no_group
from millstream.commands.engine.conditions import skip_filter, take_filter
from millstream.commands.engine.evicting import record_passes
from millstream.commands.engine.given_options import note_option, quoted
from millstream.commands.engine.lifecycle import live_group, new_group, note_used
from millstream.commands.runtime.arguments import Args, parse_integer
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import OK, Simple
from millstream.commands.runtime.stream_effects import GROUPRULES, GROUPTTL, RULE_NUMBERS
from millstream.commands.table.registry import command
from millstream.errors import INVALID_ID, SYNTAX, CommandError
from millstream.ids import parse
from millstream.storage.groups.group import UNTIL_RESUMED, Group
from millstream.storage.streams.stream import Stream

DELAYS_MAX = 16
NUMBER_MAX = 2**63 - 1
# The options whose value is a number: the least and the greatest one.
NUMBERS = {
    b"TTL": (0, NUMBER_MAX),
    b"TIMEOUT": (0, 86_400_000),
    b"MAXDELIVER": (0, 1_000_000),
    b"MAXINFLIGHT": (0, NUMBER_MAX),
    b"RUN": (1, 1000),
    b"CONSUMERTTL": (0, NUMBER_MAX),
    b"PAUSE": (-1, NUMBER_MAX),
}
OPTIONS = frozenset([*NUMBERS, b"START", b"BACKOFF", b"DEADLETTER", b"ORDER", b"WHERE"])
BAD_DELAYS = f"ERR BACKOFF must have from 0 to {DELAYS_MAX} values"
BAD_DELAY = f"ERR a BACKOFF value must be from 0 to {DELAY_MAX_MS}"
NEEDS_DEAD_LETTER = "ERR MAXDELIVER needs a DEADLETTER stream"
OWN_DEAD_LETTER = "ERR a stream cannot be its own dead letter stream"
NEEDS_TIMEOUT = "ERR BACKOFF, MAXDELIVER, DEADLETTER, MAXINFLIGHT and ORDER need a TIMEOUT"
# The names of rules in GroupRules, and their words in the effect. Each is a number.
EFFECT_WORDS = {rule: word for word, rule in RULE_NUMBERS.items()}
LISTS = {"backoff_ms": b"BACKOFF", "where": b"WHERE"}
ORDERS = (b"NONE", b"ALL", b"FIELD")
ORDER_IS_USED = "ERR ORDER can change only while the group has no pending and no parked entries"
OF_MANAGED_GROUPS = ("backoff_ms", "max_deliver", "dead_letter", "max_in_flight")


class Request:
    """The options of a request. `start` is b"$" or an ID; `pause_ms` is -1 for a pause without an
    end. `rules` has the others, by their names in GroupRules."""

    def __init__(self) -> None:
        self.start: bytes | tuple[int, int] | None = None
        self.ttl_ms: int | None = None
        self.pause_ms: int | None = None
        self.rules: dict[str, Any] = {}


@command(
    "TGROUP key group [START id] [TTL ms] [TIMEOUT ms] [BACKOFF numdelays [ms ...]] "
    "[MAXDELIVER n:integer] [DEADLETTER dead:key] [MAXINFLIGHT n] "
    "[ORDER <order: NONE | ALL | {field: FIELD name}>] [RUN n] "
    "[where: WHERE n:integer [condition ...]] [CONSUMERTTL ms] [PAUSE ms]",
    "write",
    complexity="O(1); O(n) if MAXDELIVER or TIMEOUT changes, n the number of the group's pending "
    "entries",
)
def tgroup(ctx: Context, args: Args) -> Simple:
    """Sets the rules by which the server delivers the entries of a consumer group.

    Rules that are not given stay as they are. Options come in any order, each once. The reply is
    OK.
    """
    key, name = args.take(), args.take()
    request = _take_request(args)
    stream = ctx.write_stream(key)
    group = None if stream is None else live_group(ctx, key, stream, name)
    if group is None and request.start is None:
        raise no_group(key, name)
    current = rules_of(group)
    if request.pause_ms is not None:
        request.rules["paused_until_ms"] = _pause_end(request.pause_ms, ctx.steady_ms, current)
    _check(key, {**current, **request.rules})
    _check_order(group, request.rules.get("order"), current["order"])
    if stream is None or group is None:
        stream, group = _make_group(ctx, key, name, request)
    if request.ttl_ms is not None and request.ttl_ms != group.ttl_ms:
        stream.set_ttl(group, request.ttl_ms, ctx.steady_ms)
        ctx.changed(GROUPTTL, key, name, request.ttl_ms, event=None)
    changed = {rule: value for rule, value in request.rules.items() if value != current[rule]}
    if changed:
        if "order" in changed:
            changed["order"] = (*changed["order"], ctx.server.random_number())
        record_passes(ctx, key, stream)  # by the filter so far
        group.set_rules(**changed)
        ctx.keyspace.has_rules = True
        # Entries may be due for readers that wait: the effect wakes them.
        ctx.changed(GROUPRULES, key, name, *_effect_words(changed), event=None)
    note_used(ctx, key, group)
    return OK


def _take_request(args: Args) -> Request:
    """The options from the cursor on. Unknown words are refused before malformed values."""
    first = args.pos
    given: dict[bytes, bytes] = {}
    while args.remaining and _skip_option(args, given):
        pass
    args.pos = first
    request = Request()
    while args.remaining:
        word = args.take().upper()
        if word == b"START":
            request.start = _take_start(args)
        elif word == b"TTL":
            request.ttl_ms = _take_number(args, word)
        elif word == b"PAUSE":
            request.pause_ms = _take_number(args, word)
        else:
            rule, value = _take_rule(args, word)
            request.rules[rule] = value
    return request


def _take_rule(args: Args, word: bytes) -> tuple[str, Any]:
    """The name of a rule in GroupRules, and its value."""
    if word in RULE_NUMBERS:
        return RULE_NUMBERS[word], _take_number(args, word)
    if word == b"DEADLETTER":
        return "dead_letter", args.take()
    if word == b"ORDER":
        kind = args.take().upper()
        return "order", (kind, args.take() if kind == b"FIELD" else b"")
    if word == b"WHERE":
        filter = take_filter(args, 0)
        return "where", [] if filter is None else filter.words
    count = args.take_int_between(0, DELAYS_MAX, BAD_DELAYS)
    delays = (args.take_int_between(0, DELAY_MAX_MS, BAD_DELAY) for _ in range(count))
    return "backoff_ms", tuple(delays)


def _take_number(args: Args, word: bytes) -> int:
    least, most = NUMBERS[word]
    return args.take_int_between(least, most, f"ERR {word.decode()} must be from {least} to {most}")


def _skip_option(args: Args, given: dict[bytes, bytes]) -> bool:
    """Skip an option with its values; False if the number of its values is malformed."""
    word = args.take()
    if word.upper() not in OPTIONS:
        raise CommandError(f"ERR Unrecognized TGROUP option '{quoted(word)}'")
    word = word.upper()
    note_option(given, word)
    _require(args, word.decode(), 1)
    if word == b"WHERE":
        return skip_filter(args)
    value = args.take()
    if word == b"ORDER":
        _skip_order(args, value)
    if word != b"BACKOFF":
        return True
    count = parse_integer(value)
    if count is None or not 0 <= count <= DELAYS_MAX:
        return False
    _require(args, f"BACKOFF {count}", count)
    args.pos += count
    return True


def _skip_order(args: Args, kind: bytes) -> None:
    if kind.upper() not in ORDERS:
        raise CommandError(f"{SYNTAX}, ORDER must be NONE, ALL or FIELD, not '{quoted(kind)}'")
    if kind.upper() == b"FIELD":
        _require(args, "ORDER FIELD", 1)
        args.take()


def _require(args: Args, option: str, count: int) -> None:
    """Refuse an option with fewer values."""
    if args.remaining < count:
        values = "a value" if count == 1 else f"{count} values"
        raise CommandError(f"{SYNTAX}, {option} needs {values}")


def _take_start(args: Args) -> bytes | tuple[int, int]:
    word = args.take()
    if word == b"$":
        return word
    try:
        return parse(word, True)
    except ValueError:
        raise CommandError(INVALID_ID) from None


def rules_of(group: Group | None) -> dict[str, Any]:
    """The rules of a group by their names in GroupRules; those of a new group for None."""
    rules = None if group is None else group.rules
    numbers = EFFECT_WORDS.keys() - {"run"}
    values = {rule: 0 if rules is None else getattr(rules, rule) for rule in numbers}
    picking = None if rules is None else rules.picking
    return {
        **values,
        "backoff_ms": () if group is None else group.backoff_ms,
        "dead_letter": b"" if rules is None else rules.dead_letter or b"",
        "order": (b"NONE", b"") if picking is None else (picking.order, picking.field),
        "run": 1 if picking is None else picking.run,
        "where": [] if picking is None else picking.where,
    }


def _pause_end(pause_ms: int, now_ms: int, current: dict[str, Any]) -> int:
    """The end of a pause that begins now. A pause that is over stays as it is without one."""
    if pause_ms < 0:
        return UNTIL_RESUMED
    is_over = current["paused_until_ms"] <= now_ms
    if pause_ms == 0:
        return current["paused_until_ms"] if is_over else 0
    return min(now_ms + pause_ms, UNTIL_RESUMED - 1)


def _check(key: bytes, rules: dict[str, Any]) -> None:
    """Refuse rules that do not fit together."""
    is_ordered = rules["order"][0] != b"NONE"
    if not rules["timeout_ms"] and (is_ordered or any(rules[rule] for rule in OF_MANAGED_GROUPS)):
        raise CommandError(NEEDS_TIMEOUT)
    if rules["max_deliver"] and not rules["dead_letter"]:
        raise CommandError(NEEDS_DEAD_LETTER)
    if rules["dead_letter"] and rules["dead_letter"] == key:
        raise CommandError(OWN_DEAD_LETTER)


def _check_order(group: Group | None, wanted: object, current: object) -> None:
    """Refuse another order while entries have keys of the old one."""
    if wanted is None or wanted == current or group is None:
        return
    if group.pending.count or group.parked:
        raise CommandError(ORDER_IS_USED)


def _effect_words(changed: dict[str, Any]) -> list[bytes | int]:
    """Rules as words of the effect."""
    words: list[bytes | int] = []
    for rule, value in changed.items():
        if rule == "order":
            words += [b"ORDER", *value]
        elif rule in LISTS:
            words += [LISTS[rule], len(value), *value]
        elif rule == "dead_letter":
            words += [b"DEADLETTER", value]
        else:
            words += [EFFECT_WORDS[rule], value]
    return words


def _make_group(ctx: Context, key: bytes, name: bytes, request: Request) -> tuple[Stream, Group]:
    """Create the group, and the stream if it is missing."""
    if ctx.memory_error is not None:
        raise CommandError(ctx.memory_error)
    stream = ctx.open_stream(key)
    start = stream.last_id if isinstance(request.start, bytes) else request.start
    assert start is not None
    entries_read = 0 if start == (0, 0) else -1
    return stream, new_group(ctx, key, stream, name, start, entries_read, request.ttl_ms or 0)
