"""The requests of a worker: its rules, its reads, and the results of its jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from millstream.client.core import requests
from millstream.client.core.options import WorkerOptions
from millstream.client.core.requests import command
from millstream.client.core.steps import Command
from millstream.client.core.words import IdWord, Key, text, wait_words

REASON_MAX_BYTES = 1024
"""The limit of the server."""
NO_CLAIM: Final = 2**63 - 1
"""An idle time that no entry has: the read claims nothing, and shows earlier deliveries."""


class Result(NamedTuple):
    """The result of a job as the server gets it. `mode` is that of TNACK; None acknowledges."""

    mode: str | None
    delay_ms: int | None = None
    reason: bytes = b""


DONE: Final = Result(None)
GIVEN_BACK: Final = Result("SILENT")
"""The handler has not begun: the delivery does not count."""


class Held(NamedTuple):
    """A consumer of a group of a stream."""

    key: Key
    group: Key
    consumer: str


class Arrived(NamedTuple):
    """An entry in the reply to a read, as the server wrote it."""

    word: str | bytes
    fields: list[Any] | None
    """None for an entry that no longer exists."""
    idle_ms: int
    deliveries: int
    """Earlier ones."""


def set_rules(key: Key, group: Key, start: str, options: WorkerOptions) -> Command[Any]:
    """TGROUP: creates the group if it is missing."""
    rules = {
        "TIMEOUT": options.timeout_ms,
        "MAXDELIVER": options.max_deliver,
        "DEADLETTER": options.dead_letter,
    }
    return requests.tgroup(key, group, start, rules, options.backoff_ms)


def read_jobs(
    group: Key, consumer: str, keys: Sequence[Key], count: int, block_ms: int | None
) -> Command[list[tuple[str, list[Arrived]]]]:
    """Up to `count` entries of several streams; the first streams come first."""
    wait, wait_s = wait_words(block_ms)
    limit = "COUNT" if len(keys) == 1 else "MAXCOUNT"
    return command(
        "XREADGROUP",
        *("GROUP", group, consumer, limit, count, *wait, "CLAIM", NO_CLAIM),
        *("STREAMS", *keys, *[">"] * len(keys)),
        read=_read_arrived,
        wait_s=wait_s,
    )


def _read_arrived(reply: Any) -> list[tuple[str, list[Arrived]]]:
    """By key. The reply is a map in RESP3, and null if there is no entry."""
    pairs = reply.items() if isinstance(reply, Mapping) else reply or ()
    return [(text(key), [Arrived(*entry) for entry in entries]) for key, entries in pairs]


def settle(held: Held, result: Result, words: Sequence[str | bytes]) -> Command[Any]:
    """XACK or TNACK. The reply to TNACK has a code for each ID."""
    key, group, consumer = held
    if result.mode is None:
        return command("XACK", key, group, *words)
    given = requests.NackWords(result.mode, result.delay_ms, result.reason or None)
    return requests.tnack(key, group, consumer, words, given)


def extend(held: Held, for_ms: int, words: Sequence[IdWord]) -> Command[list[int]]:
    """TEXTEND: a code for each ID."""
    return requests.textend(*held, for_ms, words)


def give_all_back(held: Held) -> Command[Any]:
    """TNACK ALL: everything that the consumer holds."""
    silent = requests.NackWords("SILENT")
    return replace(requests.tnack_all(*held, silent), accepts="NOGROUP")


def remove_consumer(held: Held) -> Command[Any]:
    return replace(command("XGROUP", "DELCONSUMER", *held), accepts="NOGROUP")


def reason_of(error: BaseException) -> bytes:
    """The text of an exception, cut at a character; the name of its class if it has none."""
    try:
        shown = str(error)
    except Exception:
        shown = ""
    found = (shown or type(error).__name__).encode("utf-8", "backslashreplace")
    return found[:REASON_MAX_BYTES].decode("utf-8", "ignore").encode()
