"""Protection of the dashboard: the Host header, the password, headers of every answer, tokens.

A page of another origin could otherwise reach a dashboard on this machine through the browser, by a
name that it makes point to 127.0.0.1, or by a form that it sends here.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import secrets
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "content-security-policy": (
        "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; "
        "object-src 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")


class Guard:
    """Refuses requests with another Host or without the password, and adds the headers."""

    def __init__(
        self, app: ASGIApp, hosts: Collection[str], any_address: bool, password: str | None
    ) -> None:
        """`hosts` are allowed Host headers; with `any_address` every IP address is allowed, too."""
        self._app = app
        self._hosts = frozenset(hosts)
        self._any_address = any_address
        self._password = password

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    found[name] = value
            await send(message)

        app = self._app
        if not self._knows(headers.get("host", "")):
            text = "this dashboard has another name; the option --host adds one\n"
            app = PlainTextResponse(text, 421)
        elif self._password is not None and not self._may_enter(headers.get("authorization", "")):
            asked = {"www-authenticate": 'Basic realm="millstream", charset="UTF-8"'}
            app = PlainTextResponse("the password is wrong or missing\n", 401, asked)
        await app(scope, receive, send_with_headers)

    def _knows(self, host: str) -> bool:
        if host in self._hosts:
            return True
        if not self._any_address:
            return False
        address = host.rpartition(":")[0] if not host.endswith("]") else host
        try:
            ipaddress.ip_address((address or host).strip("[]"))
        except ValueError:
            return False
        return True

    def _may_enter(self, authorization: str) -> bool:
        given = login_of(authorization)
        if given is None or self._password is None:
            return False
        return hmac.compare_digest(given[1], self._password.encode())


def login_of(authorization: str) -> tuple[bytes, bytes] | None:
    """User and password of an Authorization header; None if it has none."""
    kind, _, text = authorization.partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        user, _, password = base64.b64decode(text, validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return user, password


class Tokens:
    """The secret that forms of this dashboard send back."""

    def __init__(self, hosts: Collection[str]) -> None:
        """`hosts` are names of this dashboard. A proxy may send another Host header than the
        browser did."""
        self.value = secrets.token_urlsafe(32)
        self._hosts = frozenset(hosts)

    def allows(self, request: Request, token: object) -> bool:
        """True if a POST comes from a page of this dashboard: its origin and its token."""
        scheme, _, name = request.headers.get("origin", "").partition("://")
        is_named = name == request.headers.get("host", "") or name in self._hosts
        is_ours = scheme in ("http", "https") and is_named
        is_known = isinstance(token, str) and hmac.compare_digest(
            token.encode(), self.value.encode()
        )
        return is_ours and is_known
