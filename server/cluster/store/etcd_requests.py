"""Requests to etcd and its replies, as JSON of the gateway at /v3/.

All requests are built here: etcd ignores a field with a wrong name, and a compare without its
number would compare with 0. In replies, numbers of 64 bits are strings, and what is 0, empty or
false is left out.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from millstream.server.cluster.store.store import (
    Change,
    Changes,
    Commit,
    Compacted,
    Compare,
    Contents,
    Grant,
    Value,
)

# Codes of gRPC. With the first ones, the outcome is unknown.
CANCELLED, UNKNOWN, DEADLINE, INTERNAL, UNAVAILABLE = 1, 2, 4, 13, 14
UNCLEAR = frozenset({CANCELLED, UNKNOWN, DEADLINE, INTERNAL, UNAVAILABLE})
PERMISSION_DENIED, UNAUTHENTICATED = 7, 16
CODES = {"PermissionDenied": PERMISSION_DENIED, "Unauthenticated": UNAUTHENTICATED}  # as texts
NO_LEASE = "etcdserver: requested lease not found"
NO_AUTHENTICATION = "etcdserver: authentication is not enabled"
OLD_AUTHENTICATION = "etcdserver: revision of auth store is old"
NO_USER = "etcdserver: user name is empty"

Fields = Mapping[str, Any]
Outcome = TypeVar("Outcome")


class EtcdError(Exception):
    """etcd has answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class UnexpectedReply(Exception):
    """The reply is not that of etcd, or of a version that this program does not know."""


class Call(NamedTuple):
    """A POST: its path and its content."""

    path: str
    content: bytes


class Kept(NamedTuple):
    """A lease that was kept alive: its time to live, or None if it has ended; the term of etcd's
    leader."""

    ttl_s: float | None
    term: int


def _call(path: str, fields: Fields) -> Call:
    return Call(path, json.dumps(fields, separators=(",", ":")).encode())


def _packed(data: bytes) -> str:
    return b64encode(data).decode()


def _bounds(prefix: str) -> dict[str, str]:
    """All keys that begin with a prefix, which ends with a slash."""
    first = prefix.encode()
    return {"key": _packed(first), "range_end": _packed(first[:-1] + bytes([first[-1] + 1]))}


# Requests


def read_all(prefix: str) -> Call:
    return _call("/v3/kv/range", _bounds(prefix))


def transaction(prefix: str, compares: Sequence[Compare], changes: Sequence[Change]) -> Call:
    fields = {
        "compare": [
            {
                "key": _packed((prefix + name).encode()),
                "target": "MOD",
                "result": "EQUAL",
                "mod_revision": str(version),
            }
            for name, version in compares
        ],
        "success": [_operation(prefix, change) for change in changes],
    }
    return _call("/v3/kv/txn", fields)


def _operation(prefix: str, change: Change) -> Fields:
    key = _packed((prefix + change.name).encode())
    if change.data is None:
        return {"request_delete_range": {"key": key}}
    put = {"key": key, "value": _packed(change.data), "lease": str(change.lease)}
    return {"request_put": put}


def grant_lease(ttl_s: int) -> Call:
    return _call("/v3/lease/grant", {"TTL": str(ttl_s)})


def keep_lease(lease: int) -> Call:
    return _call("/v3/lease/keepalive", {"ID": str(lease)})


def confirm_leader() -> Call:
    """A read, which needs a majority; its content does not matter."""
    return _call("/v3/kv/range", {"key": _packed(b"/"), "count_only": True})


def revoke_lease(lease: int) -> Call:
    return _call("/v3/lease/revoke", {"ID": str(lease)})


def watch_after(prefix: str, revision: int) -> Call:
    request = {**_bounds(prefix), "start_revision": str(revision + 1)}
    return _call("/v3/watch", {"create_request": request})


def authenticate(user: str, password: str) -> Call:
    return _call("/v3/auth/authenticate", {"name": user, "password": password})


# Replies


def reply_of(content: bytes) -> Fields:
    """The object in a reply, or in one line of a stream. EtcdError if it is an error."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        raise UnexpectedReply(f"it has answered {content[:80]!r}") from None
    if not isinstance(fields, dict):
        raise UnexpectedReply(f"it has answered {content[:80]!r}")
    error = fields.get("error")
    if isinstance(error, dict):  # of a stream, whose status is 200
        fields = {**error, "code": error.get("grpc_code", error.get("code"))}
    elif error is None and not ("code" in fields and "message" in fields):
        return fields
    code = fields.get("code")
    message = fields.get("message") or error
    raise EtcdError(code if isinstance(code, int) else UNKNOWN, str(message))


def parsed(parse: Callable[[Fields], Outcome], reply: Fields) -> Outcome:
    """Apply a function to a reply. UnexpectedReply if this has other fields, or values of other
    types."""
    try:
        return parse(reply)
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as problem:
        raise UnexpectedReply(
            f"its answer cannot be read ({type(problem).__name__}: {problem})"
        ) from None


def result_of(reply: Fields) -> Fields:
    """The content of one message of a stream."""
    result = reply.get("result")
    if not isinstance(result, dict):
        raise UnexpectedReply("its answer has no result")
    return result


def _number(fields: Fields, name: str) -> int:
    return int(fields.get(name, 0))


def revision_of(reply: Fields) -> int:
    revision = _number(reply.get("header", {}), "revision")
    if revision < 1:
        raise UnexpectedReply("its answer has no revision")
    return revision


def contents_of(reply: Fields, prefix: str) -> Contents:
    values = dict(_named(row, prefix) for row in reply.get("kvs", ()))
    if reply.get("more"):
        raise UnexpectedReply("it has answered with a part of the values")
    return Contents(revision_of(reply), values)


def _named(row: Fields, prefix: str) -> tuple[str, Value]:
    name = _name_of(row, prefix)
    data = b64decode(row.get("value", ""))
    return name, Value(data, _number(row, "mod_revision"), _number(row, "lease"))


def _name_of(row: Fields, prefix: str) -> str:
    return b64decode(row["key"]).decode("utf-8", "replace").removeprefix(prefix)


def commit_of(reply: Fields) -> Commit:
    return Commit(reply.get("succeeded", False) is True, revision_of(reply))


def grant_of(reply: Fields) -> Grant:
    found = Grant(_number(reply, "ID"), _number(reply, "TTL"))
    if not found.id or not found.ttl_s:
        raise UnexpectedReply("its answer has no lease")
    return found


def kept_of(reply: Fields) -> Kept:
    result = result_of(reply)
    return Kept(_number(result, "TTL") or None, term_of(result))


def term_of(reply: Fields) -> int:
    """The term of etcd's leader, as the member that answers knows it."""
    return _number(reply["header"], "raft_term")


def token_of(reply: Fields) -> str:
    token = reply.get("token")
    if not isinstance(token, str) or not token or not (token.isascii() and token.isprintable()):
        raise UnexpectedReply("its answer has no token")
    return token


def changes_of(reply: Fields, prefix: str) -> Changes | None:
    """The changes in a message of a watch; None if it has none. Compacted, or EtcdError, if it ends
    the watch."""
    result = result_of(reply)
    compacted = _number(result, "compact_revision")
    if compacted:
        raise Compacted(f"etcd has forgotten the changes up to revision {compacted}")
    if result.get("canceled"):
        raise _cancellation(str(result.get("cancel_reason", "the watch was canceled")))
    values: dict[str, Value | None] = {}
    for event in result.get("events", ()):
        row = event["kv"]
        if event.get("type") == "DELETE":
            values[_name_of(row, prefix)] = None
        else:
            name, value = _named(row, prefix)
            values[name] = value
    return Changes(revision_of(result), values) if values else None


def _cancellation(reason: str) -> EtcdError:
    """The error in the text of a message that ends a watch."""
    found = re.fullmatch("rpc error: code = ([A-Za-z]+) desc = (.*)", reason, re.DOTALL)
    if found is None:
        return EtcdError(UNKNOWN, reason)
    return EtcdError(CODES.get(found[1], UNKNOWN), found[2])
