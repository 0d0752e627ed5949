"""The requests of each action: ordinary commands, with the rights of the dashboard's user.

Each function returns the sentence for the browser and the log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

from starlette.exceptions import HTTPException

from millstream.dashboard import shown
from millstream.dashboard.server_link import Requests, Word
from millstream.dashboard.stream_info import GroupInfo, StreamInfo

CONSUMER_MAX = 200  # characters
AT_ONCE = 1000
SEARCHED_MAX = 20_000  # pending entries among which those that wait are looked for
REDRIVEN_MAX = 1_000_000
REDRIVEN_AT_ONCE = 1000
MINUTES_MAX = 1_000_000
# The consumer that takes entries that wait, only to give them back at once.
OWN_CONSUMER = "millstream-dashboard"
LARGEST_IDLE_MS = 2**63 - 1


class Target(NamedTuple):
    """The object of an action, as the address of its page names it."""

    stream: StreamInfo
    group: GroupInfo | None = None
    consumer: bytes = b""
    ticket: bytes = b""

    @property
    def words(self) -> tuple[bytes, bytes]:
        """Key and group, as most commands take them."""
        assert self.group is not None
        return self.stream.key, self.group.name

    @property
    def stream_query(self) -> str:
        return f"db={self.stream.db}&key={shown.in_url(self.stream.key)}"

    def named(self) -> Iterator[tuple[str, bytes]]:
        """The parts for a line of the log."""
        yield "stream", self.stream.key
        if self.group is not None:
            yield "group", self.group.name
        if self.consumer:
            yield "consumer", self.consumer
        if self.ticket:
            yield "ticket", self.ticket


Values = dict[str, str]  # of a form


async def _old_enough(
    link: Requests, target: Target, values: Values, *consumer: bytes
) -> list[bytes]:
    """The IDs of up to AT_ONCE pending entries that are old enough, of one consumer if it is
    given."""
    words: list[Word] = ["IDLE", _number(values) * 1000, "-", "+", AT_ONCE, *consumer]
    rows = await link.call("XPENDING", *target.words, *words, db=target.stream.db)
    return [row[0] for row in rows]


async def _acknowledge(link: Requests, target: Target, values: Values) -> str:
    ids = await _old_enough(link, target, values)
    if not ids:
        return "No entry has been pending that long."
    count = await link.call("XACK", *target.words, *ids, db=target.stream.db)
    return f"{shown.counted(count, 'entry was', 'entries were')} acknowledged."


async def _claim(link: Requests, target: Target, values: Values) -> str:
    consumer = values.get("text", "").strip()
    if not consumer or len(consumer) > CONSUMER_MAX:
        raise HTTPException(400, "the consumer needs a name")
    ids = await _old_enough(link, target, values)
    if not ids:
        return "No entry has been pending that long."
    words: list[Word] = [*target.words, consumer, _number(values) * 1000, *ids]
    claimed = await link.call("XCLAIM", *words, "JUSTID", db=target.stream.db)
    return f"{shown.counted(len(claimed), 'entry was', 'entries were')} claimed."


async def _retry(link: Requests, target: Target, values: Values) -> str:
    """No entry is idle for the largest time, so XCLAIM takes only those that wait. The consumer
    gives them back without a delay, and their numbers of deliveries stay."""
    ids = await _waiting(link, target)
    db = target.stream.db
    if not ids:
        return "No entry waits."
    # In one transaction: without the right to one of the commands, none of them runs. TNACK ignores
    # entries that the consumer did not get.
    claim: list[Word] = ["XCLAIM", *target.words, OWN_CONSUMER, LARGEST_IDLE_MS, *ids, "JUSTID"]
    give_back: list[Word] = ["TNACK", *target.words, OWN_CONSUMER, "FAIL", "DELAY", 0]
    give_back += ["IDS", len(ids), *ids]
    leave: list[Word] = ["XGROUP", "DELCONSUMER", *target.words, OWN_CONSUMER]
    taken, *_ = await link.transaction([claim, give_back, leave], db)
    return f"{shown.counted(len(taken), 'entry is', 'entries are')} due now."


async def _waiting(link: Requests, target: Target) -> list[bytes]:
    """The IDs of up to AT_ONCE pending entries without a reader."""
    found: list[bytes] = []
    start = b"-"
    for _ in range(SEARCHED_MAX // AT_ONCE):
        rows = await link.call("XPENDING", *target.words, start, "+", AT_ONCE, db=target.stream.db)
        found += [
            entry_id for entry_id, consumer, idle_ms, _ in rows if not consumer and idle_ms < 0
        ]
        if len(rows) < AT_ONCE or len(found) >= AT_ONCE:
            break
        start = b"(" + rows[-1][0]
    return found[:AT_ONCE]


async def _give_back(link: Requests, target: Target, values: Values) -> str:
    ids = await _old_enough(link, target, values, target.consumer)
    if not ids:
        return "The consumer has held no entry that long."
    words: list[Word] = [*target.words, target.consumer, "FAIL", "DELAY", 0]
    words += ["REASON", "given back in the dashboard", "IDS", len(ids), *ids]
    codes = await link.call("TNACK", *words, db=target.stream.db)
    given, ended = codes.count(1), len(codes) - codes.count(1) - codes.count(-1)
    more = f" {shown.counted(ended, 'is a dead letter', 'are dead letters')} now." if ended else ""
    return f"{shown.counted(given, 'entry was', 'entries were')} given back.{more}"


async def _redrive(link: Requests, target: Target, values: Values) -> str:
    assert target.group is not None
    left = _number(values, REDRIVEN_MAX)
    dead = target.group.rules.get("deadletter")
    if not dead:
        raise HTTPException(400, "the group has no dead letter stream")
    returned = appended = stayed = 0
    db = target.stream.db
    # What fails again meanwhile is copied again, after the newest entry of now.
    newest = await link.call("XREVRANGE", dead, "+", "-", "COUNT", 1, db=db)
    end, after = newest[0][0] if newest else b"0-0", b"0-0"
    while left > 0 and _parts(after) < _parts(end):
        count = min(left, REDRIVEN_AT_ONCE)
        words: list[Word] = [dead, *target.words, count, "AFTER", after]
        if values.get("tick"):
            words.append("APPEND")
        last, *numbers = await link.call("TREDRIVE", *words, db=db)
        returned, appended, stayed = (
            one + more for one, more in zip((returned, appended, stayed), numbers, strict=True)
        )
        if last is None:
            break
        after, left = last, left - count
    done = f"{shown.counted(returned, 'entry is', 'entries are')} due again"
    if appended:
        done += f", {shown.counted(appended, 'was', 'were')} appended"
    return f"{done}. {shown.counted(stayed, 'dead letter stays', 'dead letters stay')}."


def _parts(entry_id: bytes) -> tuple[int, int]:
    ms, _, seq = entry_id.replace(b".", b"-").partition(b"-")
    return int(ms), int(seq)


async def _pause(link: Requests, target: Target, values: Values) -> str:
    minutes = _number(values, MINUTES_MAX)
    words: tuple[Word, ...] = ("PAUSE", minutes * 60_000 or -1)
    await link.call("TGROUP", *target.words, *words, db=target.stream.db)
    until = (
        f"for {shown.counted(minutes, 'minute', 'minutes')}" if minutes else "until it is resumed"
    )
    return f"The group is paused {until}."


async def _resume(link: Requests, target: Target, values: Values) -> str:
    await link.call("TGROUP", *target.words, "PAUSE", 0, db=target.stream.db)
    return "The group was resumed."


async def _delete_group(link: Requests, target: Target, values: Values) -> str:
    await link.call("XGROUP", "DESTROY", *target.words, db=target.stream.db)
    return "The group was deleted."


async def _trim(link: Requests, target: Target, values: Values) -> str:
    keep = _number(values)
    stream = target.stream
    count = await link.call("XTRIM", stream.key, "MAXLEN", keep, db=stream.db)
    return f"{shown.counted(count, 'entry was', 'entries were')} removed."


async def _cancel(link: Requests, target: Target, values: Values) -> str:
    stream = target.stream
    count = await link.call("TCANCEL", stream.key, target.ticket, db=stream.db)
    return "The entry was cancelled." if count else "The entry was appended or cancelled before."


async def _delete(link: Requests, target: Target, values: Values) -> str:
    await link.call("UNLINK", target.stream.key, db=target.stream.db)
    return "The stream was deleted."


REQUESTS: dict[str, Callable[[Requests, Target, Values], Awaitable[str]]] = {
    "/group/ack": _acknowledge,
    "/group/claim": _claim,
    "/group/retry": _retry,
    "/group/give-back": _give_back,
    "/group/redrive": _redrive,
    "/group/pause": _pause,
    "/group/resume": _resume,
    "/group/delete": _delete_group,
    "/stream/trim": _trim,
    "/stream/cancel": _cancel,
    "/stream/delete": _delete,
}


def _number(values: Values, most: int = 10**15) -> int:
    text = values.get("number", "")
    if not text.isascii() or not text.isdigit() or len(text) > 15 or int(text) > most:
        raise HTTPException(400, f"the number must be from 0 to {most:,}")
    return int(text)
