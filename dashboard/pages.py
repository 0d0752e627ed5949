"""The pages: what each one asks the server, and what its template gets."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from millstream.dashboard import delivery_view, shown
from millstream.dashboard.board import Dashboard, query, stream_key_of
from millstream.dashboard.delivery_view import DeadLetter
from millstream.dashboard.node_columns import NODE_COLUMNS
from millstream.dashboard.sampler import SURVEYED_MAX
from millstream.dashboard.server_link import (
    TIMEOUT_S,
    NotServed,
    RequestRefused,
    ServerLink,
    Unavailable,
    Word,
    is_error,
)
from millstream.dashboard.stream_columns import COLUMNS, TableRow, sort_key
from millstream.dashboard.stream_info import GroupInfo, StreamInfo
from millstream.remote import info_fields, pairs
from millstream.slot_routing import SLOTS

PER_PAGE = 50
ENTRIES = 50
FIELDS_MAX = 12  # columns of a table of entries
PENDING_SHOWN = 100
PENDING_COUNTED = 1000
AGES_S = ((60, "under a minute"), (600, "under 10 minutes"), (3600, "under an hour"))
ID = re.compile(r"([0-9]{1,20})(?:[-.]([0-9]{1,20}))?")  # with a dot, as the T commands show it
ID_MAX = 2**64 - 1
TAIL_PER_S = 200
TAILS_MAX = 8
TAIL_BLOCK_MS = 2000
DEMOTED = "UNBLOCKED"


class PageHandlers:
    """The handlers of pages that only read."""

    def __init__(self, board: Dashboard) -> None:
        self._board = board
        self._sampler = board.sampler
        self._link = board.sampler.link
        self._tails = 0

    async def overview(self, request: Request) -> Response:
        values = query(request)
        words = values.get("search", b"")
        sort = values.get("sort", b"key").decode("ascii", "replace")
        stream_keys = [one for one in await self._sampler.keys() if words in one[1]]
        number = max(1, _integer(values.get("page"), 1))
        start = (number - 1) * PER_PAGE
        total = listed = len(stream_keys)
        key = sort_key(sort)
        if key is not None:
            survey = await self._sampler.survey(words)
            ranked = sorted(survey, key=key, reverse=True)
            streams, listed = ranked[start : start + PER_PAGE], len(ranked)
            if total <= SURVEYED_MAX:
                total = listed
        else:
            streams = await self._sampler.streams(stream_keys[start : start + PER_PAGE])
        self._sampler.watch([(one.db, one.key) for one in streams])
        now_ms = _now_ms()
        rows = [TableRow(one, self._sampler.rate((one.db, one.key)), now_ms) for one in streams]
        return self._board.page(
            request, "overview.html", columns=COLUMNS, rows=rows, total=total, listed=listed,
            number=number, pages=max(1, -(-listed // PER_PAGE)), sort=sort,
            search=shown.readable(words), search_url=shown.in_url(words),
            complete=self._sampler.keys_complete,
        )  # fmt: skip

    async def stream(self, request: Request) -> Response:
        values = query(request)
        db, key = stream_key_of(values)
        stream = await self._stream(db, key)
        self._sampler.watch([(db, key)])
        entries, older, newer = await self._entries(db, key, values)
        columns = _columns(entries)
        asked = delivery_view.scheduled_request(stream)
        scheduled = (await self._link.batch([asked], db))[0] if asked else []
        return self._board.page(
            request, "stream.html", stream=stream, entries=entries, columns=columns,
            as_columns=bool(columns) and values.get("show") != b"raw",
            rate=self._sampler.rate((db, key)), rates=self._sampler.rates((db, key)),
            rates_query=_stream_query(db, key),
            older=older, newer=newer, at=shown.readable(values.get("at", b"")), now_ms=_now_ms(),
            policy=pairs(stream.details.get("policy")) if self._sampler.has_tinfo else {},
            scheduled=[] if is_error(scheduled) else scheduled,
            copies={one.copy_id: one for one in delivery_view.dead_letters_of(entries)},
        )  # fmt: skip

    async def _stream(self, db: int, key: bytes) -> StreamInfo:
        found = await self._sampler.streams([(db, key)])
        if not found:
            raise HTTPException(404, "there is no such stream, or you may not read it")
        return found[0]

    async def _entries(
        self, db: int, key: bytes, values: dict[str, bytes]
    ) -> tuple[list[Any], bytes | None, bytes | None]:
        """A page of entries, the newest first, and the IDs from which older and newer ones are."""
        before, after = values.get("before"), values.get("after")
        at = values.get("at", b"").strip()
        if after:
            reply = await self._link.call("XRANGE", key, b"(" + after, "+", "COUNT", ENTRIES, db=db)
            reply.reverse()
        else:
            end: bytes | str = b"(" + before if before else _end_of(at) if at else "+"
            reply = await self._link.call("XREVRANGE", key, end, "-", "COUNT", ENTRIES, db=db)
        if not reply:
            return [], None, None
        return reply, reply[-1][0], reply[0][0]

    async def rates(self, request: Request) -> Response:
        """The table of rates, which the chart is drawn from."""
        db, key = stream_key_of(query(request))
        self._sampler.watch([(db, key)])
        if self._sampler.problem is not None:
            raise Unavailable(self._sampler.problem)
        rates = self._sampler.rates((db, key))
        return self._board.page(
            request, "rates_table.html", rates=rates, rates_query=_stream_query(db, key)
        )

    async def group(self, request: Request) -> Response:
        values = query(request)
        db, key = stream_key_of(values)
        stream = await self._stream(db, key)
        group = find_group(stream, values.get("name", b""))
        self._sampler.watch([(db, key)])
        await self._sampler.find_rules(db, [(stream, group)])
        consumers, pending = await self._link.batch(
            [
                ("XINFO", "CONSUMERS", key, group.name),
                ("XPENDING", key, group.name, "-", "+", PENDING_COUNTED),
            ],
            db,
        )
        rows = [] if is_error(pending) else pending
        return self._board.page(
            request, "group.html", stream=stream, group=group, now_ms=_now_ms(),
            consumers=[] if is_error(consumers) else [pairs(row) for row in consumers],
            pending=delivery_view.pending_rows(rows[:PENDING_SHOWN], group.rules), ages=_ages(rows),
            counted=len(rows), is_managed=delivery_view.is_managed(group.rules),
            rules=delivery_view.rule_rows(group.rules), pause=delivery_view.pause_text(group.rules),
            dead_letters=await self._dead_letters(db, key, group),
        )  # fmt: skip

    async def _dead_letters(self, db: int, key: bytes, group: GroupInfo) -> list[DeadLetter]:
        """The last dead letters of a group; none if the user may not read their stream."""
        asked = delivery_view.copies_request(group.rules, key, group.name)
        found = (await self._link.batch([asked], db))[0] if asked else []
        return [] if is_error(found) else delivery_view.dead_letters_of(found)

    async def nodes(self, request: Request) -> Response:
        cluster = self._board.cluster
        await cluster.find_nodes()
        if not cluster.nodes:
            raise HTTPException(404, "this server is not a node of a cluster")
        return self._board.page(
            request, "nodes.html", figures=cluster.figures, totals=cluster.totals,
            columns=NODE_COLUMNS, slots=SLOTS,
        )  # fmt: skip

    async def clients(self, request: Request) -> Response:
        rows = [
            (server, dict(word.partition("=")[::2] for word in line.split(" ") if "=" in word))
            for server, text in await self._of_all_nodes("CLIENT", "LIST")
            for line in text.decode("utf-8", "backslashreplace").splitlines()
        ]
        return self._board.page(request, "clients.html", rows=rows[:1000], total=len(rows))

    async def slowlog(self, request: Request) -> Response:
        rows = [
            (server, row)
            for server, found in await self._of_all_nodes("SLOWLOG", "GET", 128)
            for row in found
        ]
        if not self._board.cluster.has_one:
            rows.sort(key=lambda pair: -pair[1][1])
        return self._board.page(request, "slowlog.html", rows=rows)

    async def _of_all_nodes(self, *words: Word) -> list[tuple[str, Any]]:
        """The names of the servers that answer, and their replies."""
        servers = await self._board.cluster.servers()
        replies = await asyncio.gather(*(one.call(*words) for one in servers))
        return [(one.name, reply) for one, reply in zip(servers, replies, strict=True)]

    async def server(self, request: Request) -> Response:
        server = await self._board.cluster.server_named(query(request).get("node", b"").decode())
        if server is None:
            raise HTTPException(404, "the cluster has no such node")
        text = await server.call("INFO", "everything")
        sections = [
            (title.strip(), list(info_fields(rest.encode()).items()))
            for title, _, rest in (
                part.partition("\n") for part in text.decode("utf-8", "replace").split("# ")[1:]
            )
        ]
        return self._board.page(request, "server.html", sections=sections, name=server.name)

    async def tail(self, request: Request) -> Response:
        """New entries as server-sent events, on a connection of their own."""
        db, key = stream_key_of(query(request))
        if self._tails >= TAILS_MAX:
            raise HTTPException(503, "too many pages follow streams; close one")
        self._tails += 1
        events = self._events(request, db, key)
        # The browser shows that it follows when the headers come: entries from then on are shown.
        first = await anext(events, b"")
        return StreamingResponse(
            _chained(first, events),
            media_type="text/event-stream",
            headers={"x-accel-buffering": "no"},  # nginx would collect the events
        )

    async def _events(self, request: Request, db: int, key: bytes) -> AsyncIterator[bytes]:
        cluster = self._board.cluster
        link: ServerLink | None = None
        try:
            await cluster.find_nodes()
            # Another node may take the place of one that hangs.
            link = ServerLink(cluster.url_for(key), None if cluster.has_one else TIMEOUT_S)
            last = _last_event_id(request) or await _last_id(link, db, key)
            yield b": following\nid: %s\n\n" % last
            while not await request.is_disconnected():
                begun = time.monotonic()
                reply = await link.call("XREAD", "COUNT", TAIL_PER_S, "BLOCK", TAIL_BLOCK_MS,
                                        "STREAMS", key, last, db=db)  # fmt: skip
                entries = reply[0][1] if reply else []
                for entry_id, words in entries:
                    last = entry_id
                    fields = [shown.readable(word) for word in words or []]
                    facts = {"id": shown.readable(entry_id), "ms": shown.id_ms(entry_id),
                             "fields": fields}  # fmt: skip
                    yield b"data: %s\nid: %s\n\n" % (json.dumps(facts).encode(), entry_id)
                if entries:  # at most TAIL_PER_S in a second
                    await asyncio.sleep(
                        max(0.0, len(entries) / TAIL_PER_S - (time.monotonic() - begun))
                    )
                else:
                    yield b": nothing new\n\n"
        except (Unavailable, NotServed):  # the browser asks again: another node may have the stream
            return
        except RequestRefused as problem:
            if not cluster.has_one and str(problem).startswith(DEMOTED):
                return
            yield b"event: problem\ndata: " + json.dumps(str(problem)).encode() + b"\n\n"
        finally:
            self._tails -= 1
            if link is not None:
                await link.close()


async def _chained(first: bytes, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for event in events:
        yield event


def _last_event_id(request: Request) -> bytes | None:
    """The last ID that the browser has, when it connects again after an interruption."""
    text = request.headers.get("last-event-id", "")
    return text.encode() if ID.fullmatch(text) else None


async def _last_id(link: ServerLink, db: int, key: bytes) -> bytes:
    """The ID after which a stream's next entry comes. With `$`, entries that are added between two
    reads would be missed."""
    try:
        facts = pairs(await link.call("XINFO", "STREAM", key, db=db))
    except RequestRefused as error:
        if "no such key" not in str(error):
            raise
        return b"0-0"
    return bytes(facts["last-generated-id"])


def _stream_query(db: int, key: bytes) -> str:
    return f"db={db}&key={shown.in_url(key)}"


def find_group(stream: StreamInfo, name: bytes) -> GroupInfo:
    for group in stream.groups:
        if group.name == name:
            return group
    raise HTTPException(404, "the stream has no such group")


def _integer(text: bytes | None, default: int) -> int:
    return int(text) if text is not None and text.isdigit() and len(text) < 10 else default


def _now_ms() -> int:
    return int(time.time() * 1000)


def _end_of(text: bytes) -> str:
    """The ID up to which entries are shown: an ID, or a time of this machine or with a zone."""
    words = text.decode("utf-8", "replace").strip()
    numbers = ID.fullmatch(words)
    if numbers is not None and all(int(number or 0) <= ID_MAX for number in numbers.groups()):
        return words.replace(".", "-")
    try:
        moment = datetime.fromisoformat(words)
    except ValueError:
        raise HTTPException(
            400,
            f"{words[:100]!r} is neither an ID, such as 1769848212481-0, nor a time, such as "
            "2026-01-31T09:30",
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return str(max(0, int(moment.timestamp() * 1000)))


def _columns(entries: list[Any]) -> list[bytes]:
    """The names of the fields, if all entries have the same few fields, each once."""
    names = [words[::2] for _, words in entries if words is not None]
    if not names or any(one != names[0] for one in names) or len(set(names[0])) != len(names[0]):
        return []
    return list(names[0]) if len(names[0]) <= FIELDS_MAX else []


def _ages(rows: list[Any]) -> list[tuple[str, int]]:
    """The numbers of pending entries by the time since their delivery."""
    found = dict.fromkeys([text for _, text in AGES_S] + ["an hour or more"], 0)
    for row in rows:
        idle_s = row[2] / 1000
        text = next((text for limit_s, text in AGES_S if idle_s < limit_s), "an hour or more")
        found[text] += 1
    return list(found.items())
