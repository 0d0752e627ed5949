"""Checks of the URLs of servers, whose errors contain no part of a password.

The URL is split at the first `/`, `?` or `#`. If one of these is in a password, the rest of the
password is in the path, the query or the fragment.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

SCHEMES = ("redis", "rediss", "unix")
UNREADABLE = (
    "it cannot be read as redis://user:password@host:port/db; in a user or a password, / is "
    "written %2F, # is %23, ? is %3F, @ is %40, [ is %5B and ] is %5D"
)


def is_url(source: str) -> bool:
    """True if a source is the URL of a server, and not a file."""
    return source.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


def split_url(url: str) -> SplitResult:
    """The parts of a URL. ValueError, which contains no part of the URL, if a part after the host
    may belong to the password."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - reading the attribute checks the port
    except ValueError:  # its text may contain a part of the password
        raise ValueError(UNREADABLE) from None
    if parts.scheme == "unix":  # without a host, and a path may contain @
        is_readable = not parts.netloc or parts.netloc.endswith("@")
    else:
        is_readable = not has_at_after_host(url)
    if not is_readable:
        raise ValueError(UNREADABLE)
    return parts


def url_of_node(url: str, host: str, port: int) -> str:
    """The URL of another node of the same cluster: the user, the password and the options of TLS
    are the same. A node is reached by TCP, also if the URL names a Unix socket."""
    parts = split_url(url)
    user = "".join(parts.netloc.rpartition("@")[:2])
    name = f"[{host}]" if ":" in host else host
    if parts.scheme == "unix":
        return f"redis://{user}{name}:{port}"
    options = [pair for pair in parse_qsl(parts.query) if pair[0] != "db"]
    query = f"?{urlencode(options)}" if options else ""
    return f"{parts.scheme}://{user}{name}:{port}{query}"


def has_at_after_host(url: str) -> bool:
    """True if an @ follows the part of a URL that names the host."""
    rest = url.partition("://")[2] or url
    return "@" in rest[len(re.split("[/?#]", rest, maxsplit=1)[0]) :]


def shown_url(url: str) -> str | None:
    """A URL without user, password and parameters; None if it cannot be read."""
    try:
        parts = split_url(url)
    except ValueError:
        return None
    where = parts.netloc.rpartition("@")[2] + parts.path
    return f"{parts.scheme}://{where}" if parts.scheme in SCHEMES else _without_scheme(url)


def _without_scheme(url: str) -> str:
    """The same for a URL whose scheme is unknown: the user may be in any part."""
    return re.split("[?#]", url.rpartition("@")[2], maxsplit=1)[0]
