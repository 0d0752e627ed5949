"""Names and addresses of hosts: what can be one, before anything looks it up."""

from __future__ import annotations

import ipaddress
import re

_NAME = rb"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?"  # also names of containers
_NAME_MAX = 253
_SHOWN_MAX = 100


def check_host(host: str) -> None:
    """ValueError, with a sentence, for a text that is neither a name nor an IP address."""
    if not (is_address(host) or _is_name(host)):
        raise ValueError(
            f"{_shown(host)} is neither the name nor the IP address of a host; "
            "give one without a port"
        )


def is_address(host: str) -> bool:
    """True for an IP address, False for a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_name(host: str) -> bool:
    try:
        encoded = host.encode("idna")  # as a look-up does
    except UnicodeError:
        return False
    return len(encoded) <= _NAME_MAX and re.fullmatch(_NAME, encoded) is not None


def _shown(host: str) -> str:
    return repr(host if len(host) <= _SHOWN_MAX else host[:_SHOWN_MAX] + "...")
