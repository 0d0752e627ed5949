"""The actions: a page that says what will happen, and the request that does it.

They exist only with `--actions`. A GET never changes anything. Each action is one line of the log.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from millstream.dashboard import shown
from millstream.dashboard.action_requests import REQUESTS, Target
from millstream.dashboard.board import Dashboard, form_values, query, stream_key_of
from millstream.dashboard.pages import find_group
from millstream.dashboard.proxied import Visitor, visitor_of
from millstream.dashboard.server_link import RequestRefused, Unavailable
from millstream.dashboard.stream_info import StreamInfo

LOGGER = logging.getLogger("millstream.dashboard")
INPUTS = ("number", "text", "tick")  # the values of a form that a person has typed
BODY_MAX = 65_536


class Action(NamedTuple):
    """The text and the inputs of a form. `number`, `text` and `tick` are the labels of inputs, if
    it has any; `initial` is the number at first."""

    title: str
    warning: str
    button: str
    number: str = ""
    text: str = ""
    tick: str = ""
    initial: int = 0
    is_harmless: bool = False


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
    "/group/retry": Action(
        "Retry now",
        "Entries that wait for their delay will be due at once, up to 1,000 of them. This does not "
        "count as a delivery.",
        "Retry now",
        is_harmless=True,
    ),
    "/group/give-back": Action(
        "Give back entries of a consumer",
        "The consumer will lose these entries, and the next read gets them. Their deliveries have "
        "failed: those that were delivered as often as the group allows become dead letters.",
        "Give back",
        number="Entries held for at least this many seconds",
    ),
    "/group/redrive": Action(
        "Redrive dead letters",
        "Entries that still exist will be due at once in this group, with 0 deliveries, and their "
        "copies will be deleted. Other groups see nothing. Copies of other groups stay.",
        "Redrive",
        number="Entries of the dead letter stream to look at, from the oldest",
        tick="Append entries that no longer exist, as new ones",
        initial=10_000,
    ),
    "/group/pause": Action(
        "Pause the group",
        "Nothing is delivered to its readers meanwhile. They can finish what they hold.",
        "Pause",
        number="Minutes; 0: until it is resumed",
    ),
    "/group/resume": Action(
        "Resume the group",
        "Entries are delivered again, also to readers that wait.",
        "Resume",
        is_harmless=True,
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
    "/stream/cancel": Action(
        "Cancel a scheduled entry",
        "It will not be appended. This cannot be undone.",
        "Cancel the entry",
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
        target = _target_of(path, found[0], values)
        if target.group is not None:
            await self._board.sampler.find_rules(db, [(target.stream, target.group)])
        if form is not None:
            visitor = visitor_of(request, self._trusts_proxy)
            return self._after(path, target, await self._act(path, target, form, visitor))
        return self._board.page(
            request, "confirm.html", action=ACTIONS[path], target=target,
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
        self, path: str, target: Target, values: dict[str, str], visitor: Visitor
    ) -> str:
        """Run an action, and log it with its result; the sentence for the browser."""
        typed = [(key, values[key].encode()) for key in INPUTS if values.get(key)]
        words = "".join(f" {name}={_quoted(raw)}" for name, raw in (*target.named(), *typed))
        line = (
            f"action {path[1:]} db={target.stream.db}{words}"
            f" user={_quoted(visitor.user.encode())} address={visitor.address}"
        )
        try:
            done = await REQUESTS[path](self._board.sampler.link, target, values)
        except (RequestRefused, Unavailable) as problem:
            LOGGER.warning("%s: not done: %s", line, shown.readable(str(problem).encode()))
            raise
        LOGGER.info("%s: %s", line, done)
        return done

    def _after(self, path: str, target: Target, done: str) -> Response:
        """The page to which the browser returns."""
        after = "/"
        if target.group is not None and path != "/group/delete":
            after = f"/group?{target.stream_query}&name={shown.in_url(target.group.name)}"
        elif path != "/stream/delete":
            after = f"/stream?{target.stream_query}"
        mark = "&" if "?" in after else "?"
        return RedirectResponse(
            f"{self._board.prefix}{after}{mark}done={shown.in_url(done.encode())}", 303
        )


def _target_of(path: str, stream: StreamInfo, values: dict[str, bytes]) -> Target:
    """The object of an action; 404 if the stream does not have the group."""
    if not path.startswith("/group/"):
        return Target(stream, ticket=values.get("ticket", b""))
    group = find_group(stream, values.get("name", b""))
    return Target(stream, group, values.get("consumer", b""))


def _quoted(raw: bytes) -> str:
    """A name in a line of the log, on one line and with an end that it cannot imitate."""
    escaped = shown.readable(raw).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
