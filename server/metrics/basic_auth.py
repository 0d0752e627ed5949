"""Passwords of the metrics: HTTP basic authentication with the users of the server."""

from __future__ import annotations

import base64
import binascii

from millstream.commands.access.users import password_hash
from millstream.commands.access.verdict import denial
from millstream.commands.table.registry import COMMANDS
from millstream.server.execution.access import Access


class BasicAuth:
    """Decides who may read the metrics: users who may run INFO."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def allows(self, authorization: bytes, address: str) -> bool:
        """True if this header of a request has the name and password of such a user. A wrong
        password is counted and logged like that of a client, without an entry in ACL LOG."""
        if not authorization:
            return False  # clients ask without a password first
        name, password = _credentials(authorization)
        user = self._access.users.get(name)
        if user is None:
            password_hash(password)  # the time does not tell which users exist
        if user is not None and user.accepts(password):
            return denial(user, COMMANDS[b"info"], [b"INFO"]) is None
        self._access.refuse_scrape(address, name)
        return False


def _credentials(authorization: bytes) -> tuple[bytes, bytes]:
    """The name and the password in an Authorization header; empty ones if it has none."""
    scheme, _, encoded = authorization.partition(b" ")
    if scheme.lower() != b"basic":
        return b"", b""
    try:
        name, _, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except binascii.Error:
        return b"", b""
    return name, password
