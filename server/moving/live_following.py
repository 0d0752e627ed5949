"""`millstream import URL --to URL --follow`: a server follows a Redis, and the lag is shown.

The server follows by REPLICAOF; this program only orders that and watches. It may end at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from millstream.cli_error import CliError
from millstream.errors import counted
from millstream.remote import info_fields
from millstream.server_url import split_url
from millstream.tools.tool_connection import ToolConnection, Unreachable, is_error

SECOND_S = 1.0
COVERED_S = 60  # the time that the source's backlog should cover
KINDS = ("redis", "valkey")
DEFAULT_PORT = 6379
LOOPBACK = "127.0.0.1"

Fields = dict[str, str]


class Pair:
    """A Redis and the server that follows it. The Redis need not allow INFO."""

    def __init__(self, source_url: str, target_url: str, timeout_s: float = 10) -> None:
        self.source = ToolConnection(source_url, timeout_s)
        self.target = ToolConnection(target_url, timeout_s)
        parts = split_url(source_url)
        self._uses_tls = parts.scheme == "rediss"
        self.host, self.port = parts.hostname or "localhost", parts.port or DEFAULT_PORT
        if parts.scheme == "unix":
            self.host, self.port = LOOPBACK, self._tcp_port(target_url)

    def _tcp_port(self, target_url: str) -> int:
        """The TCP port of a source whose URL has a Unix socket: a server follows over TCP."""
        if not is_on_this_machine(target_url):
            raise CliError(
                f"{self.target.name} may be on another machine, and follows the source over TCP:"
                " name the source as redis://HOST:PORT"
            )
        port = int(info_fields(self.source.call("INFO", "server")).get("tcp_port", 0))
        if not port:
            raise CliError(
                f"{self.source.name} has no TCP port (directive port), and a server follows"
                " another one over TCP"
            )
        return port

    def source_facts(self) -> Fields:
        """INFO replication of the source; nothing if its user may not use that."""
        (reply,) = self.source.pipeline([("INFO", "replication")])
        return {} if is_error(reply) else info_fields(reply)

    def target_facts(self) -> Fields:
        return info_fields(self.target.call("INFO", "replication"))

    def is_followed(self, facts: Fields) -> bool:
        """True if the target is a replica of the source."""
        address = facts.get("master_host"), facts.get("master_port")
        return address == (self.host, str(self.port))

    def begin(self) -> bool:
        """Order the target to follow the source; False if it does already."""
        if self.is_followed(self.target_facts()):
            return False
        if "millstream_version" not in info_fields(self.target.call("INFO", "server")):
            raise CliError(
                f"{self.target.name} is not a millstream server; REPLICAOF {self.host} {self.port},"
                " sent to it, lets a Redis follow"
            )
        if self.source.password:  # of the URL, or REDISCLI_AUTH
            self.target.call("CONFIG", "SET", "masterauth", self.source.password)
            self.target.call("CONFIG", "SET", "masteruser", self.source.user)
        self._choose_tls()
        self.target.call("REPLICAOF", self.host, self.port)
        return True

    def _choose_tls(self) -> None:
        """The link of the target uses TLS if the URL of the source does."""
        (reply,) = self.target.pipeline([("CONFIG", "GET", "tls-replication")])
        uses_tls = isinstance(reply, list) and reply[1:] == [b"yes"]
        if uses_tls is not self._uses_tls:
            wanted = "yes" if self._uses_tls else "no"
            self.target.call("CONFIG", "SET", "tls-replication", wanted)


def is_on_this_machine(url: str) -> bool:
    parts = split_url(url)
    host = parts.hostname or "localhost"
    return parts.scheme == "unix" or host in ("localhost", "::1") or host.startswith("127.")


class Watch:
    """Makes the lines about a pair, one a second."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._before: tuple[float, int] | None = None  # a time and the source's offset then
        self._error = ""
        self.is_redis = True  # or a millstream server, which hands over
        self._has_warned = False

    def lines(self) -> Iterator[str]:
        """The news since the last call."""
        ours, theirs = self._pair.target_facts(), self._pair.source_facts()
        if not self._pair.is_followed(ours):
            raise CliError(f"{self._pair.target.name} does not follow {self._pair.source.name}")
        if (error := ours.get("repl_last_error", "")) and error != self._error:
            yield f"error: {error}"
        self._error = error
        self.is_redis = not is_of_ours(ours)
        yield _state(ours, theirs)
        warning = self._backlog_warning(theirs)
        if warning and not self._has_warned:
            self._has_warned = True
            yield warning

    def _backlog_warning(self, theirs: Fields) -> str:
        """A warning if the source's backlog is too short for its rate."""
        offset, size = _number(theirs, "master_repl_offset"), _number(theirs, "repl_backlog_size")
        now_s = time.monotonic()
        before, self._before = self._before, (now_s, offset)
        if before is None or not size or now_s <= before[0]:
            return ""
        rate = (offset - before[1]) / (now_s - before[0])
        if rate * COVERED_S <= size:
            return ""
        return (
            f"warning: repl-backlog-size {size} of the source covers {size / rate:.0f} seconds of"
            f" the present rate; after a longer cut, a full sync is needed. {COVERED_S} seconds are"
            f" {int(rate * COVERED_S)} bytes"
        )


def _state(ours: Fields, theirs: Fields) -> str:
    if ours.get("master_sync_in_progress") == "1":
        read, total = (
            _number(ours, "master_sync_read_bytes"),
            _number(ours, "master_sync_total_bytes"),
        )
        return (
            f"full sync: {read} of {total} bytes,"
            f" {_number(ours, 'source_spool_bytes')} bytes of commands wait"
        )
    is_redis = ours.get("master_kind") in KINDS
    applied = _number(ours, "source_offset" if is_redis else "slave_repl_offset")
    sent = _number(theirs, "master_repl_offset")
    lag = counted(max(sent - applied, 0), "byte") if theirs else "not known (INFO is forbidden)"
    text = (
        f"link {ours.get('master_link_status')}, lag {lag}, last byte"
        f" {ours.get('master_last_io_seconds_ago')} s ago, offset {applied}"
    )
    if is_redis:
        text += f", {counted(_number(ours, 'source_commands'), 'command')}"
    if _number(ours, "source_spool_bytes"):
        text += f", {ours['source_spool_bytes']} bytes stored"
    if _number(ours, "source_ignored"):
        text += f", ignored: {ours['source_ignored_names']}"
    if _number(ours, "source_dropped_strings"):
        text += f", dropped strings: {ours['source_dropped_strings']}"
    return text


def is_of_ours(facts: Fields) -> bool:
    """True if a replica has a link to a millstream server."""
    return facts.get("master_link_status") == "up" and facts.get("master_kind") == "millstream"


def _number(fields: Fields, name: str) -> int:
    text = fields.get(name, "0")
    return int(text) if text.isdecimal() else 0


def follow(source_url: str, target_url: str, say: Callable[[str], Any]) -> None:
    """Order the target to follow the source, and say once a second how far it is, until the program
    is interrupted."""
    pair = Pair(source_url, target_url)
    began = pair.begin()
    say(f"{pair.target.name} {'follows' if began else 'follows already:'} {pair.source.name}")
    watch = Watch(pair)
    try:
        while True:
            try:
                for line in watch.lines():
                    say(line)
            except Unreachable as problem:
                say(f"error: {problem.message}")
                pair.source.reconnect()
                pair.target.reconnect()
            time.sleep(SECOND_S)
    except KeyboardInterrupt:
        way = "--promote" if watch.is_redis else "REPLICAOF NO ONE, sent to it,"
        say(f"{pair.target.name} continues to follow; {way} makes it the primary")
