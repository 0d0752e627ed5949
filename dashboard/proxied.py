"""A proxy in front of the dashboard: the path under which it serves the dashboard, and the browser
whose request it passes on."""

from __future__ import annotations

import re
from typing import NamedTuple

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from millstream.dashboard.guard import login_of

OWN_PATHS = ("stream", "group", "nodes", "clients", "slowlog", "server", "static")


def checked_prefix(text: str) -> str:
    """The value of --prefix as the beginning of a path, without a slash at its end; ValueError says
    what is wrong with it."""
    parts = text.strip("/").split("/") if text.strip("/") else []
    if not all(re.fullmatch(r"[A-Za-z0-9._~-]+", part) and part.strip(".") for part in parts):
        raise ValueError("it has to be a path of letters, digits and - . _ ~, for example /ms")
    if parts and parts[0] in OWN_PATHS:  # a path without the prefix would look like one with it
        raise ValueError(f"/{parts[0]} is a page of the dashboard; choose another path")
    return "".join(f"/{part}" for part in parts)


class WithoutPrefix:
    """Removes the prefix from the paths of requests. A proxy may have removed it before."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._prefix and scope["type"] == "http":
            path = scope["path"]
            if path == self._prefix or path.startswith(f"{self._prefix}/"):
                scope = {**scope, "path": path.removeprefix(self._prefix) or "/"}
        await self._app(scope, receive, send)


class Visitor(NamedTuple):
    """The person who makes a request. `user` is the name that the browser or the proxy has sent:
    the dashboard checks only the password."""

    user: str
    address: str


def visitor_of(request: Request, trusts_proxy: bool) -> Visitor:
    """With `trusts_proxy`, X-Forwarded-User and the last address of X-Forwarded-For count: the
    proxy adds that one, and a client may have sent those before it."""
    login = login_of(request.headers.get("authorization", ""))
    user = login[0].decode("utf-8", "replace") if login is not None else ""
    address = request.client.host if request.client else "-"
    if trusts_proxy:
        user = request.headers.get("x-forwarded-user") or user
        forwarded = request.headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
        if re.fullmatch(r"[0-9A-Za-z.:_\[\]-]{1,100}", forwarded):
            address = forwarded
    return Visitor(user or "-", address)
