"""Shared by the tools, the dashboard and the pipeline, which use redis-py."""

from __future__ import annotations

import os
import re
import socket
import ssl
from typing import Any

import redis
from redis.exceptions import ClusterDownError, InvalidResponse, MovedError, TryAgainError

LARGEST_ID = b"18446744073709551615-18446744073709551615"
Request = tuple[bytes | str | int, ...]
DEFAULT_URL = "redis://127.0.0.1:6455"
NOT_SERVED = (ClusterDownError, MovedError, TryAgainError)
"""The errors of a node of a cluster that does not serve a slot, or not now."""


def add_password(settings: dict[str, Any]) -> None:
    """Take the password from REDISCLI_AUTH if the settings of a connection, which redis-py makes
    of a URL, have none."""
    password = os.environ.get("REDISCLI_AUTH")
    if password and not settings.get("password"):
        settings["password"] = password


def reason_of(problem: BaseException) -> str:
    """The reason in one line, without the numbers and addresses that redis-py puts around it."""
    origin = problem.__cause__ or problem.__context__
    reason = origin if isinstance(origin, OSError) else problem
    if isinstance(reason, InvalidResponse):
        return "the program that answers does not speak the protocol of Redis"
    text = getattr(reason, "strerror", None) or str(reason)
    return " ".join(str(text).split()).rstrip(".") or type(problem).__name__


def url_reason_of(problem: Exception) -> str:
    """The reason why redis-py does not understand a URL. Its own sentence about the beginning of
    the URL does not fit into one of ours."""
    if "schemes" in str(problem):
        return "it has to begin with redis://, rediss:// or unix://"
    option = re.search("unexpected keyword argument '(.+)'", str(problem))
    return f"unknown option {option[1]}" if option else str(problem)


def connect_reason_of(problem: BaseException, *, uses_tls: bool) -> str:
    """The reason for a failed connection attempt, with the next step. A server closes a connection
    without an error if the client does not use TLS, or has no certificate."""
    reason = reason_of(problem)
    origin = problem.__cause__ or problem.__context__
    if isinstance(problem, redis.AuthenticationError) and "required" in reason:
        return "it needs a password: redis://user:password@host:port, or REDISCLI_AUTH"
    if isinstance(origin, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted: {origin.verify_message}; ?ssl_ca_certs=FILE in the "
            "URL names the authority"
        )
    if isinstance(origin, ssl.SSLError) and origin.reason == "WRONG_VERSION_NUMBER":
        return "this port does not speak TLS; a URL with redis:// connects without TLS"
    if "closed by server" not in reason and not isinstance(origin, ConnectionResetError):
        return reason + next_step(problem)
    if uses_tls:
        return f"{reason}; it may require ?ssl_certfile=FILE&ssl_keyfile=FILE in the URL"
    return f"{reason}; a port with TLS needs a URL with rediss://"


def next_step(problem: BaseException) -> str:
    """Advice after a connection that was not made, as the end of a sentence; nothing after one that
    broke."""
    origin = problem.__cause__ or problem.__context__
    if isinstance(origin, ConnectionRefusedError):
        return "; start the server (millstream serve), or check the host and the port"
    if isinstance(origin, FileNotFoundError):
        return "; start the server (millstream serve), or check the path of its socket"
    if isinstance(origin, socket.gaierror):
        return "; check the name of the host"
    if isinstance(problem, redis.TimeoutError):
        return "; check the host and the port, and the firewalls before it"
    return ""


def info_fields(text: object) -> dict[str, str]:
    """The fields of INFO; none if the reply is no text."""
    if not isinstance(text, bytes):
        return {}
    lines = (line for line in text.decode("utf-8", "replace").splitlines() if ":" in line)
    return {name: value for name, _, value in (line.partition(":") for line in lines)}


def pairs(words: object) -> dict[str, Any]:
    """The map that a server sends as a flat array, such as the reply to TINFO; empty for an error
    or nil."""
    if not isinstance(words, list):
        return {}
    names = (name.decode("utf-8", "replace") for name in words[::2])
    return dict(zip(names, words[1::2], strict=False))


def oldest_requests(key: bytes, group: bytes, last_delivered_id: bytes) -> list[Request]:
    """Two requests that find the oldest entry that a group has not acknowledged: the first pending
    one, and the first one after the last that was delivered."""
    # No entry follows the largest ID, and an interval that begins after it is an error.
    start, end = (
        (b"+", b"-") if last_delivered_id == LARGEST_ID else (b"(" + last_delivered_id, b"+")
    )
    return [("XPENDING", key, group), ("XRANGE", key, start, end, "COUNT", 1)]


def oldest_ms(pending: list[Any], waiting: list[Any]) -> int | None:
    """The time in the ID of that entry, from the two replies; None if there is no entry."""
    ids: list[bytes] = [pending[1]] if pending[1] is not None else []
    ids += [entry[0] for entry in waiting]
    return min((int(entry_id.partition(b"-")[0]) for entry_id in ids), default=None)
