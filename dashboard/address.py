"""Reading the parameters of addresses and forms."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote_to_bytes

from starlette.exceptions import HTTPException
from starlette.requests import Request


def query(request: Request) -> dict[str, bytes]:
    """The parameters of a URL as bytes, because keys may be any bytes."""
    found = {}
    for part in request.scope["query_string"].decode("ascii", "replace").split("&"):
        name, _, value = part.partition("=")
        found[name] = unquote_to_bytes(value.replace("+", " "))
    return found


def stream_key_of(values: dict[str, bytes]) -> tuple[int, bytes]:
    """The database and key of a request; 400 without them."""
    try:
        return int(values.get("db", b"0")), values["key"]
    except (KeyError, ValueError):
        raise HTTPException(400, "the address names no stream") from None


def form_values(body: bytes) -> dict[str, str]:
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
