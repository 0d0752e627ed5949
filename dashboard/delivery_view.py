"""The delivery rules of a group, the states of its pending entries, its dead letters, and the
scheduled entries of a stream, as pages show them."""

from __future__ import annotations

from typing import Any, NamedTuple

from millstream.dashboard import shown
from millstream.dashboard.server_link import Word
from millstream.dashboard.stream_info import StreamInfo

DEAD_LETTERS_SHOWN = 20
SCHEDULED_SHOWN = 50
# The names of the fields that each copy in a dead letter stream ends with.
COPY_FIELDS = [
    b"dead_stream", b"dead_id", b"dead_group", b"dead_consumer", b"dead_deliveries", b"dead_reason",
    b"dead_text", b"dead_time", b"dead_hops",
]  # fmt: skip
# The rules of TINFO GROUP that are a time in milliseconds, and those that are a number.
TIMES = (
    ("timeout", "Timeout"),
    ("consumer-ttl", "Idle consumers are removed after"),
    ("ttl", "The group ends, if it is not used, after"),
)
NUMBERS = (
    ("maxdeliver", "Deliveries at most"),
    ("maxinflight", "In flight at most"),
)


class PendingRow(NamedTuple):
    """A row of the table of pending entries. `again` says when the entry is delivered again."""

    entry_id: bytes
    consumer: bytes
    idle_ms: int
    deliveries: int
    state: str
    again: str


class DeadLetter(NamedTuple):
    """A copy in a dead letter stream. The other fields are those that end every copy."""

    copy_id: bytes
    stream: bytes
    source_id: bytes
    group: bytes
    consumer: bytes
    deliveries: bytes
    reason: bytes
    text: bytes
    time: bytes
    hops: bytes


def is_managed(rules: dict[str, Any]) -> bool:
    return bool(rules.get("timeout"))


def rule_rows(rules: dict[str, Any]) -> list[tuple[str, str]]:
    """Titles and texts of the rules that are set, except the dead letter stream."""
    if not rules:
        return []
    found = [(title, shown.duration(rules[name] / 1000)) for name, title in TIMES if rules[name]]
    found += [(title, shown.count(rules[name])) for name, title in NUMBERS if rules.get(name)]
    if rules["backoff"]:
        delays = ", ".join(shown.duration(delay_ms / 1000) for delay_ms in rules["backoff"])
        found.append(("Delays after failures", delays))
    return found + _order_rows(rules)


def _order_rows(rules: dict[str, Any]) -> list[tuple[str, str]]:
    order = rules.get("order", b"NONE").upper()
    found = []
    if order != b"NONE":
        field = shown.name(rules["order-field"])
        found.append(("In order", "all" if order == b"ALL" else f"those with the same {field}"))
        found.append(("Entries of a key in one reply", shown.count(rules["run"])))
    where = rules.get("where")
    if where:
        words = where if isinstance(where, list) else [where]
        found.append(("Only entries with", " ".join(shown.name(word) for word in words)))
    return found


def pause_text(rules: dict[str, Any]) -> str | None:
    """The length of a pause that a group has; None if it has none."""
    left_ms = rules.get("pause", 0)
    if not left_ms:
        return None
    return "until it is resumed" if left_ms < 0 else f"for {shown.duration(left_ms / 1000)}"


def pending_rows(rows: list[Any], rules: dict[str, Any]) -> list[PendingRow]:
    """The rows of XPENDING with their states. XPENDING does not tell a waiting entry from a dead
    one if the group has both."""
    return [
        PendingRow(entry_id, consumer, idle_ms, deliveries, *_state(consumer, idle_ms, rules))
        for entry_id, consumer, idle_ms, deliveries in rows
    ]


def _state(consumer: bytes, idle_ms: int, rules: dict[str, Any]) -> tuple[str, str]:
    if not is_managed(rules):
        return "", ""
    if idle_ms < 0 and not consumer:
        if not rules["dead"]:
            return "waiting", "after its delay"
        return ("waiting or dead", "-") if rules["waiting"] else ("dead", "never")
    left_ms = rules["timeout"] - idle_ms
    if left_ms <= 0:
        return "due", "with the next read"
    return "in flight", f"in {shown.duration(left_ms / 1000)}"


def copies_request(rules: dict[str, Any], key: bytes, group: bytes) -> tuple[Word, ...] | None:
    """The request for the last dead letters of a group; None if it has no dead letter stream."""
    dead = rules.get("deadletter")
    if not dead:
        return None
    return (
        "XREVRANGE", dead, "+", "-", "COUNT", DEAD_LETTERS_SHOWN,
        "WHERE", 2, "dead_stream", "EQ", key, "dead_group", "EQ", group,
    )  # fmt: skip


def dead_letter_of(entry_id: bytes, words: list[bytes] | None) -> DeadLetter | None:
    """An entry as a copy in a dead letter stream; None if it is another entry."""
    own = (words or [])[-2 * len(COPY_FIELDS) :]
    return DeadLetter(entry_id, *own[1::2]) if own[::2] == COPY_FIELDS else None


def dead_letters_of(entries: list[Any]) -> list[DeadLetter]:
    found = (dead_letter_of(entry_id, words) for entry_id, words in entries)
    return [one for one in found if one is not None]


def scheduled_request(stream: StreamInfo) -> tuple[Word, ...] | None:
    """The request for the first scheduled entries of a stream; None if it has none."""
    if not stream.details.get("scheduled"):
        return None
    return ("TSCHEDULED", stream.key, "-", "+", "COUNT", SCHEDULED_SHOWN)
