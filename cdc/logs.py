"""The log: lines on standard error, with the source, and without passwords."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from urllib.parse import quote, unquote, urlsplit

from millstream.cdc.config import CdcConfig
from millstream.cdc.sql import one_line

HIDDEN = "***"
PASSWORD = re.compile(r"(password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&]+)", re.IGNORECASE)
# The text after a password up to the next option, which may be a part of an unquoted password.
UNQUOTED = re.compile(r"password\s*=\s*\S+\s+(.*?)(?:\s\w+\s*=|$)", re.IGNORECASE)
IN_URL = re.compile(r"(\w+://[^\s/@:]*:)\S+(@)")
# libpq's error for a connection string that it cannot parse, which contains a part of the string.
UNREADABLE = re.compile(r"percent-encoded|connection info|connection option|URI|unexpected spaces")


class Secrets:
    """The passwords of a configuration."""

    def __init__(self, config: CdcConfig) -> None:
        self._config = config

    @cached_property
    def _words(self) -> list[str]:
        """The longest first: one may be a part of another. Few lines need them, and libpq."""
        config = self._config
        urls = [config.destination.url, *(source.url for source in config.sources)]
        words = set(filter(None, [config.millstream.password]))
        words |= set(_of_url(config.millstream.server))
        for url in urls:
            words |= set(_of_conninfo(url))
        both = {one for word in words for one in (word, quote(word, ""))}
        return sorted(both, key=len, reverse=True)

    def hide(self, text: object) -> str:
        """A text in one line, without passwords.

        A password may also be an ordinary word, such as the name of a role in SQL, which stays.
        """
        line = one_line(str(text))
        line = IN_URL.sub(rf"\1{HIDDEN}\2", PASSWORD.sub(rf"\1{HIDDEN}", line))
        for word in self._words if UNREADABLE.search(line) else []:
            line = line.replace(word, HIDDEN)
        return line


def _of_conninfo(url: str) -> Iterator[str]:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        password = conninfo_to_dict(url).get("password")
    except psycopg.Error:  # libpq shows a part of what it cannot read
        yield from (one_line(found[1]) for found in re.finditer(r"://[^/@:]*:(.+)@", url))
        yield from (found[2].strip("'") for found in PASSWORD.finditer(url))
        for found in UNQUOTED.finditer(url):
            yield from found[1].split()
        return
    if password:
        yield str(password)


def _of_url(url: str) -> Iterator[str]:
    try:
        password = urlsplit(url).password
    except ValueError:
        return
    if password:
        yield unquote(password)


class _Hiding(logging.Formatter):
    def __init__(self, name: str, secrets: Secrets) -> None:
        quoted = name.replace("%", "%%")
        super().__init__(f"%(asctime)s %(levelname)s {quoted}: %(message)s")
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        return self._secrets.hide(super().format(record))


def open_log(name: str, secrets: Secrets) -> logging.Logger:
    """A log whose lines have a name, normally a source's."""
    log = logging.getLogger(f"millstream.cdc.{name}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Hiding(name, secrets))
    log.handlers[:] = [handler]
    log.propagate = False
    log.setLevel(logging.INFO)
    return log
