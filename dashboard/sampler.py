"""Sampling the server, once for all browsers.

INFO is sent every two seconds, and XINFO only for streams that a page has shown in the last
seconds. While no page is open, only INFO is sent. Lists of all streams are at most ten seconds old
and bounded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

from millstream.dashboard.server_link import (
    RequestRefused,
    Requests,
    Unavailable,
    Word,
    is_error,
)
from millstream.dashboard.stream_info import GroupInfo, StreamInfo, StreamKey, read_stream
from millstream.remote import info_fields, oldest_ms, oldest_requests, pairs

log = logging.getLogger("millstream.dashboard")

SAMPLE_S = 2.0
CANCEL_AGAIN_S = 0.1
HISTORY_S = 900
WATCHED_S = 10.0  # a page that shows a stream asks again within this time
KEYS_KEPT_S = 10.0
KEYS_MAX = 10_000
SURVEYED_MAX = 2_000
SURVEY_KEPT_S = 10.0
SURVEYS_MAX = 4  # kept at the same time, each of another search
STREAMS_AT_ONCE = 50
EXAMINED_GROUPS = 20  # groups of a stream whose oldest entry and rules are looked for
WATCHED_MAX = 500


class Sampler:
    """Queries the server and keeps the results."""

    def __init__(self, link: Requests) -> None:
        self.link = link
        self.info: dict[str, str] = {}
        self.problem: str | None = "not connected yet"  # of the last sample
        self.has_tinfo = False
        self.ops: deque[tuple[float, float]] = deque(maxlen=int(HISTORY_S / SAMPLE_S))
        self._watched: dict[StreamKey, float] = {}
        self._history: dict[StreamKey, deque[tuple[float, int]]] = {}
        self._keys: list[StreamKey] = []
        self._keys_at = float("-inf")
        self.keys_complete = True
        self._surveys: dict[bytes, tuple[float, list[StreamInfo]]] = {}
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._run_id = ""

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End the task. The cancellation is repeated, because `asyncio.wait_for` of Python 3.11 can
        lose it, and redis-py uses that."""
        while self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CANCEL_AGAIN_S)
        await self.link.close()

    async def _run(self) -> None:
        while True:
            try:
                await self.sample()
                self.problem = None
            except (Unavailable, RequestRefused) as error:
                self.problem = str(error)
            except Exception as error:  # nothing waits for this task: it would end unnoticed
                text = f"{type(error).__name__}: {error}"
                if text != self.problem:
                    log.exception("the server cannot be sampled; this is repeated")
                self.problem = text
            await asyncio.sleep(SAMPLE_S)

    async def sample(self) -> None:
        """INFO, and the counters of the watched streams. Unavailable if there is no server, Refused
        if it lets no database be used."""
        self.info, self.has_tinfo = await self.link.describe()
        self._note_restart()
        self.ops.append((time.time(), float(self.info.get("instantaneous_ops_per_sec", 0))))
        await self._sample_watched()

    def _note_restart(self) -> None:
        if self.info.get("run_id", "") != self._run_id:
            self._run_id = self.info.get("run_id", "")
            self._keys_at = float("-inf")
            self._surveys.clear()

    async def _sample_watched(self) -> None:
        now = time.monotonic()
        self._watched = {one: at for one, at in self._watched.items() if now - at < WATCHED_S}
        for stream_key in [one for one in self._history if one not in self._watched]:
            if time.time() - self._history[stream_key][-1][0] > HISTORY_S:
                del self._history[stream_key]
        by_db: dict[int, list[bytes]] = {}
        for db, key in self._watched:
            by_db.setdefault(db, []).append(key)
        for db, keys in by_db.items():
            try:
                replies = await self.link.batch([("XINFO", "STREAM", key) for key in keys], db)
            except RequestRefused:  # the address of a page can name any database
                continue
            for key, reply in zip(keys, replies, strict=True):
                facts = pairs(reply)
                self._note((db, key), facts.get("entries-added"))

    def _note(self, stream_key: StreamKey, added: object) -> None:
        if not isinstance(added, int):
            return
        samples = self._history.setdefault(stream_key, deque(maxlen=int(HISTORY_S / SAMPLE_S)))
        if samples and (added < samples[-1][1]):
            samples.clear()  # the key has another stream now
        if not samples or time.time() - samples[-1][0] >= SAMPLE_S / 2:
            samples.append((time.time(), added))

    def watch(self, stream_keys: Sequence[StreamKey]) -> None:
        """Sample these streams from now on: they are on a page."""
        now = time.monotonic()
        for stream_key in stream_keys:
            self._watched.pop(stream_key, None)
            self._watched[stream_key] = now
        while len(self._watched) > WATCHED_MAX:
            del self._watched[next(iter(self._watched))]

    def rate(self, stream_key: StreamKey) -> float | None:
        """Entries per second over the last samples; None until there are two."""
        samples = self._history.get(stream_key)
        if samples is None or len(samples) < 2:
            return None
        recent = list(samples)[-6:]
        (first_s, first), (last_s, last) = recent[0], recent[-1]
        return (last - first) / max(last_s - first_s, 0.001)

    def rates(self, stream_key: StreamKey) -> list[tuple[int, float]]:
        """(Unix time, entries per second) between samples, the oldest first."""
        samples = list(self._history.get(stream_key, ()))
        return [
            (round(after_s), (after - before) / max(after_s - before_s, 0.001))
            for (before_s, before), (after_s, after) in pairwise(samples)
        ]

    async def keys(self) -> list[StreamKey]:
        """The keys of all streams, in order; at most KEYS_MAX."""
        async with self._lock:
            if time.monotonic() - self._keys_at > KEYS_KEPT_S:
                found, is_whole = await self._scan()
                self._keys = sorted(found)
                self._keys_at = time.monotonic() if is_whole else float("-inf")
            return [one for one in self._keys if self.link.may_serve(one[1])]

    async def _scan(self) -> tuple[set[StreamKey], bool]:
        """The keys of all servers, and whether each one has answered: it may be back soon."""
        self.keys_complete = True
        servers = await self.link.primaries()
        keys_max = KEYS_MAX // max(1, len(servers))
        parts = await asyncio.gather(
            *(self._scan_one(one, keys_max) for one in servers), return_exceptions=True
        )
        found: set[StreamKey] = set()
        for part in parts:
            if not isinstance(part, BaseException):
                found |= part
            elif len(parts) == 1 or not isinstance(part, Unavailable):
                raise part
        return found, not any(isinstance(part, Unavailable) for part in parts)

    async def _scan_one(self, server: Requests, keys_max: int) -> set[StreamKey]:
        """The keys of one server."""
        text = await server.call("INFO", "keyspace")
        names = [name for name in info_fields(text) if name.startswith("db")]
        found: set[StreamKey] = set()
        for db in sorted(int(name[2:]) for name in names):
            cursor: Word = 0
            while True:
                cursor, keys = await server.call(
                    "SCAN", cursor, "COUNT", 500, "TYPE", "stream", db=db
                )
                found.update((db, key) for key in keys)
                if int(cursor) == 0:
                    break
                if len(found) >= keys_max:
                    self.keys_complete = False
                    return found
        return found

    async def survey(self, words: bytes) -> list[StreamInfo]:
        """All streams with `words` in their keys, at most SURVEYED_MAX, with their groups; at most
        some seconds old."""
        stream_keys = await self.keys()
        if len(stream_keys) <= SURVEYED_MAX:  # one survey serves all searches
            return [one for one in await self._survey(b"", stream_keys) if words in one.key]
        matching = [one for one in stream_keys if words in one[1]]
        return await self._survey(words, matching[:SURVEYED_MAX])

    async def _survey(self, words: bytes, stream_keys: Sequence[StreamKey]) -> list[StreamInfo]:
        async with self._lock:
            oldest_s = time.monotonic() - SURVEY_KEPT_S
            self._surveys = {
                text: kept for text, kept in self._surveys.items() if kept[0] > oldest_s
            }
            if words not in self._surveys:
                found = await self.streams(stream_keys)
                while len(self._surveys) >= SURVEYS_MAX:
                    del self._surveys[next(iter(self._surveys))]
                self._surveys[words] = time.monotonic(), found
            return self._surveys[words][1]

    async def streams(self, stream_keys: Sequence[StreamKey]) -> list[StreamInfo]:
        """These streams with their groups, without deleted ones."""
        found: list[StreamInfo] = []
        for db in dict.fromkeys(db for db, _ in stream_keys):
            keys = [key for other, key in stream_keys if other == db]
            for start in range(0, len(keys), STREAMS_AT_ONCE):
                found += await self._look(db, keys[start : start + STREAMS_AT_ONCE])
        order = {stream_key: number for number, stream_key in enumerate(stream_keys)}
        return sorted(found, key=lambda one: order[one.db, one.key])

    async def _look(self, db: int, keys: Sequence[bytes]) -> list[StreamInfo]:
        more = "TINFO" if self.has_tinfo else "MEMORY"
        requests: list[tuple[Word, ...]] = []
        for key in keys:
            last = ("TINFO", key) if more == "TINFO" else ("MEMORY", "USAGE", key)
            requests += [("XINFO", "STREAM", key), ("XINFO", "GROUPS", key), last]
        replies = await self.link.batch(requests, db)
        found = []
        for number, key in enumerate(keys):
            stream, groups, last_reply = replies[3 * number : 3 * number + 3]
            if is_error(stream) or is_error(groups):
                continue
            found.append(read_stream(db, key, stream, groups, last_reply))
            self._note((db, key), found[-1].added)
        asked = [(one, group) for one in found for group in one.groups[:EXAMINED_GROUPS]]
        await self._find_oldest(db, asked)
        await self.find_rules(db, asked)
        return found

    async def _find_oldest(self, db: int, asked: Sequence[tuple[StreamInfo, GroupInfo]]) -> None:
        """Find the oldest entry that each group has not acknowledged."""
        requests: list[tuple[Word, ...]] = []
        for stream, group in asked:
            requests += oldest_requests(stream.key, group.name, group.last_id)
        replies = await self.link.batch(requests, db)
        for number, (_, group) in enumerate(asked):
            pending, waiting = replies[2 * number : 2 * number + 2]
            if is_error(pending) or is_error(waiting):
                continue
            group.oldest_ms = oldest_ms(pending, waiting)

    async def find_rules(self, db: int, asked: Sequence[tuple[StreamInfo, GroupInfo]]) -> None:
        """Find the rules and the counters of groups without known rules, if the server has them."""
        if not self.has_tinfo:
            return
        asked = [(stream, group) for stream, group in asked if not group.rules]
        requests = [("TINFO", stream.key, "GROUP", group.name) for stream, group in asked]
        for (_, group), reply in zip(asked, await self.link.batch(requests, db), strict=True):
            group.rules = pairs(reply)  # empty for an error: earlier versions had no rules
