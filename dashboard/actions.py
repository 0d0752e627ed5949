"""The actions: a page that says what will happen, and the request that does it.

They exist only with `--actions`. A GET never changes anything. Each action is one line of the log.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from millstream.dashboard import shown
from millstream.dashboard.board import Dashboard, form_values, query, stream_key_of
from millstream.dashboard.pages import find_group
from millstream.dashboard.proxied import Visitor, visitor_of
from millstream.dashboard.server_link import RequestRefused, Unavailable, Word
from millstream.dashboard.stream_info import StreamInfo

LOGGER = logging.getLogger("millstream.dashboard")
INPUTS = ("number", "text")  # the values of a form that a person has typed
BODY_MAX = 65_536
CONSUMER_MAX = 200  # characters
AT_ONCE = 1000


class Action(NamedTuple):
    """The text and the inputs of a form. `number` and `text` are the labels of inputs, if it has
    any."""

    title: str
    warning: str
    button: str
    number: str = ""
    text: str = ""


ACTIONS = {
    "/group/ack": Action(
        "Acknowledge pending entries",
        "The group will not deliver these entries again. This cannot be undone.",
        "Acknowledge",
        number="Entries pending for at least this many seconds",
    ),
    "/group/claim": Action(
        "Claim pending entries",
        "The entries will belong to another consumer. This does not count as a delivery.",
        "Claim",
        number="Entries pending for at least this many seconds",
        text="The consumer that gets them",
    ),
    "/group/delete": Action(
        "Delete the group",
        "Its offset, its consumers and all pending entries will be lost. This cannot be undone.",
        "Delete the group",
    ),
    "/stream/trim": Action(
        "Trim the stream",
        "The oldest entries will be removed, whether or not groups have read them. This cannot be "
        "undone.",
        "Trim",
        number="Entries to keep",
    ),
    "/stream/delete": Action(
        "Delete the stream",
        "All entries and all groups will be lost. This cannot be undone.",
        "Delete the stream",
    ),
}


class Actions:
    """The handlers of actions."""

    def __init__(self, board: Dashboard, trusts_proxy: bool = False) -> None:
        self._board = board
        self._trusts_proxy = trusts_proxy
        self._link = board.sampler.link
        self._run: dict[str, Callable[[StreamInfo, bytes, dict[str, str]], Awaitable[str]]] = {
            "/group/ack": self._acknowledge,
            "/group/claim": self._claim,
            "/group/delete": self._delete_group,
            "/stream/trim": self._trim,
            "/stream/delete": self._delete,
        }

    async def handle(self, request: Request) -> Response:
        path = request.url.path
        if not self._board.has_actions:
            raise HTTPException(
                403, "this dashboard is read-only; start it with --actions to allow changes"
            )
        values = query(request)
        db, key = stream_key_of(values)
        form = await self._form(request) if request.method == "POST" else None
        found = await self._board.sampler.streams([(db, key)])
        if not found:
            raise HTTPException(404, "there is no such stream, or you may not read it")
        name = values.get("name", b"")
        group = find_group(found[0], name) if path.startswith("/group/") else None
        if form is not None:
            visitor = visitor_of(request, self._trusts_proxy)
            done = await self._act(path, found[0], name, form, visitor)
            return self._after(path, found[0], name, done)
        return self._board.page(
            request, "confirm.html", action=ACTIONS[path], stream=found[0], group=group,
            query=request.scope["query_string"].decode("ascii", "replace"),
        )  # fmt: skip

    async def _form(self, request: Request) -> dict[str, str]:
        """The values of a form of this dashboard; other forms are refused."""
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > BODY_MAX:
                raise HTTPException(413, "the form is too long")
        values = form_values(body)
        if not self._board.tokens.allows(request, values.get("token")):
            raise HTTPException(403, "this form is not from this dashboard, or has expired")
        return values

    async def _act(
        self, path: str, stream: StreamInfo, name: bytes, values: dict[str, str], visitor: Visitor
    ) -> str:
        """Run an action, and log it with its result; the sentence for the browser."""
        of_group = f" group={_quoted(name)}" if path.startswith("/group/") else ""
        typed = [key for key in INPUTS if values.get(key)]
        of_form = "".join(f" {key}={_quoted(values[key].encode())}" for key in typed)
        line = (
            f"action {path[1:]} db={stream.db} stream={_quoted(stream.key)}{of_group}{of_form}"
            f" user={_quoted(visitor.user.encode())} address={visitor.address}"
        )
        try:
            done = await self._run[path](stream, name, values)
        except (RequestRefused, Unavailable) as problem:
            LOGGER.warning("%s: not done: %s", line, shown.readable(str(problem).encode()))
            raise
        LOGGER.info("%s: %s", line, done)
        return done

    def _after(self, path: str, stream: StreamInfo, name: bytes, done: str) -> Response:
        """The page to which the browser returns."""
        stream_query = f"db={stream.db}&key={shown.in_url(stream.key)}"
        after = "/"
        if path in ("/group/ack", "/group/claim"):
            after = f"/group?{stream_query}&name={shown.in_url(name)}"
        elif path != "/stream/delete":
            after = f"/stream?{stream_query}"
        mark = "&" if "?" in after else "?"
        return RedirectResponse(
            f"{self._board.prefix}{after}{mark}done={shown.in_url(done.encode())}", 303
        )

    async def _pending(
        self, stream: StreamInfo, name: bytes, values: dict[str, str]
    ) -> list[bytes]:
        """The IDs of up to AT_ONCE pending entries that are old enough."""
        idle_ms = _number(values) * 1000
        rows = await self._link.call(
            "XPENDING", stream.key, name, "IDLE", idle_ms, "-", "+", AT_ONCE, db=stream.db
        )
        return [row[0] for row in rows]

    async def _acknowledge(self, stream: StreamInfo, name: bytes, values: dict[str, str]) -> str:
        ids = await self._pending(stream, name, values)
        if not ids:
            return "No entry has been pending that long."
        count = await self._link.call("XACK", stream.key, name, *ids, db=stream.db)
        return f"{shown.counted(count, 'entry was', 'entries were')} acknowledged."

    async def _claim(self, stream: StreamInfo, name: bytes, values: dict[str, str]) -> str:
        consumer = values.get("text", "").strip()
        if not consumer or len(consumer) > CONSUMER_MAX:
            raise HTTPException(400, "the consumer needs a name")
        ids = await self._pending(stream, name, values)
        if not ids:
            return "No entry has been pending that long."
        words: list[Word] = ["XCLAIM", stream.key, name, consumer, _number(values) * 1000, *ids]
        claimed = await self._link.call(*words, "JUSTID", db=stream.db)
        return f"{shown.counted(len(claimed), 'entry was', 'entries were')} claimed."

    async def _delete_group(self, stream: StreamInfo, name: bytes, values: dict[str, str]) -> str:
        await self._link.call("XGROUP", "DESTROY", stream.key, name, db=stream.db)
        return "The group was deleted."

    async def _trim(self, stream: StreamInfo, name: bytes, values: dict[str, str]) -> str:
        keep = _number(values)
        count = await self._link.call("XTRIM", stream.key, "MAXLEN", keep, db=stream.db)
        return f"{shown.counted(count, 'entry was', 'entries were')} removed."

    async def _delete(self, stream: StreamInfo, name: bytes, values: dict[str, str]) -> str:
        await self._link.call("UNLINK", stream.key, db=stream.db)
        return "The stream was deleted."


def _quoted(raw: bytes) -> str:
    """A name in a line of the log, on one line and with an end that it cannot imitate."""
    escaped = shown.readable(raw).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _number(values: dict[str, str]) -> int:
    text = values.get("number", "")
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise HTTPException(400, "the number must be 0 or more")
    return int(text)
