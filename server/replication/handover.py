"""This primary hands over to a replica that is being promoted (REPLICAOF NO ONE was sent to it).

From the request of the replica on, this server refuses writes and makes no frames; with
`replicas-durable`, it also sends no reply that waits for replicas. It sends its last frames. When
the replica has become a primary and has all frames, this server follows it. If the promoted server
lacks frames, this server refuses writes until REPLICAOF says whom to follow: nothing that was
confirmed is discarded without an order.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millstream.errors import CommandError
from millstream.server.config.replica_directives import parse_address
from millstream.server.replication.acceptance import SUPERSEDED
from millstream.server.replication.promotion import PROMOTING_MS
from millstream.server.replication.records import encode_last
from millstream.server.replication.relay import Relay

if TYPE_CHECKING:
    from millstream.server.replication.feed import Feed
    from millstream.server.replication.role import Replication

log = logging.getLogger("millstream.replication")

HANDING_OVER = (
    "READONLY You can't write against this primary now: its replica {} is being promoted. Ask for "
    "the primary again. If the replica does not become the primary, writes are accepted after "
    f"{PROMOTING_MS // 1000} seconds at most"
)
LACKS = (
    "its replica {0} was promoted and lacks frames of this server. Send REPLICAOF with the address "
    "of {0} to discard them, or REPLICAOF NO ONE to be a second primary"
)
REFUSED = "READONLY You can't write against this server: " + LACKS


class Handover:
    """`superseded_by` is the address of a promoted server that lacks frames; "" if there is
    none."""

    def __init__(self, role: Replication) -> None:
        self.superseded_by = ""
        self.relay = Relay(role)
        self._role = role
        self._node = role.node
        self._promoted = ("", "")  # an address, and the newest line here when it was promoted
        self._until_ms: dict[str, int] = {}  # by address: is being promoted, until then at most

    @property
    def is_waiting(self) -> bool:
        """Whether a replica is being promoted. It may lack what is confirmed meanwhile."""
        if not self._until_ms:  # nearly always; asked for each acknowledgement
            return False
        now_ms = self._node.steady_ms()
        return any(until_ms > now_ms for until_ms in self._until_ms.values())

    @property
    def is_under_way(self) -> bool:
        """Whether nothing may be confirmed here."""
        return bool(self.superseded_by) or self.is_waiting

    def refusal(self) -> str | None:
        """The error of writes."""
        if self.superseded_by:
            return REFUSED.format(self.superseded_by)
        return HANDING_OVER.format(next(iter(self._until_ms))) if self.is_waiting else None

    # What a replica says

    def begin(self, feed: Feed) -> None:
        """The replica is being promoted: confirm nothing more, and send what it lacks."""
        log.warning("the replica %s is being promoted", feed.address)
        frames = self._node.persistence
        if self._role.following is not None:  # the primary of this server may confirm more
            self.relay.begin(feed)
            return
        frames.flush_tick()
        self._until_ms[feed.address] = self._node.steady_ms() + PROMOTING_MS
        self._role.restrictions.update()
        self._role.failover.replica_promoted()
        self._node.executor.recheck_limits()
        feed.send_last(encode_last(is_primary=True), frames.last_seq)

    def abandon(self, address: str) -> None:
        """The replica with this address remains a replica, or is one again."""
        self.relay.abandon(address)
        was_promoting = self._until_ms.pop(address, None) is not None
        if self.superseded_by == address:
            self._forget_superseded()
        elif not was_promoting:
            return
        log.warning("the server %s is a replica of this one: writes are accepted", address)
        self._role.restrictions.update()

    def promoted(self, feed: Feed, value: bytes) -> None:
        """The replica is a primary, or the replica of it that `value` names by host and port
        (`Relay`)."""
        self._node.persistence.flush_tick()  # the replica lacks the changes of this tick
        last_seq = self._node.persistence.last_seq
        stored_seq = last_seq if self._node.config.replicas_durable else 0
        has_all = feed.acked_seq >= last_seq and feed.synced_seq >= stored_seq
        try:
            named = parse_address(value.decode("utf-8", "replace"))
        except ValueError as error:
            raise CommandError(f"ERR REPLCONF promoted: {error}") from None
        host, port = named or (feed.host, feed.port)
        self._until_ms.pop(feed.address, None)
        self.end(host, port, has_all)

    def end(self, host: str, port: int, has_all: bool) -> None:
        """The server with this address, which was a replica of this one, is a primary."""
        if self._role.following is not None:
            self.relay.promoted(host, port, has_all)
            return
        address = f"{host}:{port}"
        self._role.failover.replica_promoted()
        self._promoted = address, self._role.newest_line
        if has_all:
            log.warning("the replica %s was promoted and has all frames: follow it", address)
            self._until_ms[address] = self._node.steady_ms() + PROMOTING_MS
            self._node.loop.call_soon(self._follow, host, port)  # this is in one of its requests
        else:
            self._until_ms.pop(address, None)
            self.superseded_by = address
            self._role.acceptance.note(f"{host} {port} -", SUPERSEDED)
            log.error("writes are refused here: %s", LACKS.format(address))
        self._role.restrictions.update()
        self._node.executor.recheck_limits()

    def _follow(self, host: str, port: int) -> None:
        if self._role.following is None and self.is_waiting:
            self._role.follow_promoted(host, port)

    def is_old(self, address: str, newest_line: str) -> bool:
        """Whether the server with this address has sent a request before it was promoted: it has
        no line of its own yet."""
        return self.is_under_way and newest_line != "" and self._promoted == (address, newest_line)

    # This server

    def clear(self) -> None:
        """This server is a primary by order, or has become a replica."""
        self.relay.clear()
        if self._until_ms or self.superseded_by:
            self._until_ms.clear()
            self._forget_superseded()
            self._role.restrictions.update()

    def _forget_superseded(self) -> None:
        if self.superseded_by:
            self.superseded_by = ""
            self._role.acceptance.note("")

    def restore(self) -> None:
        """After a restart: refuse writes as before."""
        promoted = self._role.acceptance.marked(SUPERSEDED)
        if promoted is not None:
            self.superseded_by = "{}:{}".format(*promoted)
            log.error("writes are refused here: %s", LACKS.format(self.superseded_by))

    def tick_second(self) -> None:
        """Accept writes again if a replica has not said for long what has become of it."""
        now_ms = self._node.steady_ms()
        for address in [one for one, until_ms in self._until_ms.items() if until_ms <= now_ms]:
            del self._until_ms[address]
            log.warning(
                "the replica %s has not become the primary in time: writes are accepted", address
            )
