"""This primary hands over to a replica that is being promoted (REPLICAOF NO ONE was sent to it).

From the request of the replica on, this server refuses writes and makes no frames; with
`replicas-durable`, it also sends no reply that waits for replicas. It sends its last frames. When
the replica has become a primary and has all frames, this server follows it. If the promoted server
lacks frames, this server refuses writes until REPLICAOF names the server to follow: no confirmed
frame is discarded without an order.

If this server is a replica itself, its primary confirms the writes: the promotion is passed on to
that one (`Relay`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.errors import CommandError
from millstream.server.config.directives import Config
from millstream.server.config.replica_directives import parse_address
from millstream.server.durability.persistence import Persistence
from millstream.server.durability.workers import Machine
from millstream.server.replication.accepting_primary import SUPERSEDED, Acceptance
from millstream.server.replication.history import Histories
from millstream.server.replication.link_words import LACKS_FRAMES
from millstream.server.replication.promotion import PROMOTING_MS
from millstream.server.replication.records import encode_last
from millstream.server.replication.standing import Standing
from millstream.server.replication.upstream import Upstream

if TYPE_CHECKING:
    from millstream.server.replication.feed import Feed

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


class Relay:
    """A replica with replicas of its own passes their promotions on to its primary.

    It asks that one for its last frames, reports the promotion, and remains a replica.
    `is_promoting()`: this server is being promoted itself.
    """

    def __init__(
        self,
        machine: Machine,
        persistence: Persistence,
        standing: Standing,
        upstream: Upstream,
        is_promoting: Callable[[], bool],
    ) -> None:
        self.machine = machine
        self.persistence = persistence
        self.standing = standing
        self.upstream = upstream
        self.is_promoting = is_promoting
        self._feeds: dict[str, Feed] = {}  # that wait for LAST
        # Addresses; the primary has sent its last frames for them.
        self._asked: set[str] = set()

    def begin(self, feed: Feed) -> None:
        """The replica is being promoted. It gets the frames here if there is no primary to ask:
        without a link, with a Redis, and in a ring of servers, where the request would go round for
        ever."""
        link = self.standing.link
        self._feeds[feed.address] = feed
        is_in_ring = bool(self.upstream.ring) or self.is_promoting()
        if link is not None and link.has_primary_of_ours and not is_in_ring:
            link.say_promoting()
        else:
            self._send_last(is_of_primary=False)

    def last_arrived(self, is_of_primary: bool) -> None:
        """The record LAST of the primary, after its last frames."""
        if self._feeds:
            self.machine.scheduler.call_soon(self._send_last, is_of_primary)  # this is in the input

    def link_lost(self) -> None:
        self.machine.scheduler.call_soon(self._send_last, False)

    def _send_last(self, is_of_primary: bool) -> None:
        self.standing.receiver.apply_all()
        feeds, self._feeds = self._feeds, {}
        if is_of_primary:
            self._asked.update(feeds)
        for feed in feeds.values():
            feed.send_last(encode_last(is_primary=is_of_primary), self.persistence.commits.last_seq)

    def promoted(self, told_by: str, host: str, port: int, has_all: bool) -> None:
        """A server is a primary, as the replica with the address `told_by` says."""
        link = self.standing.link
        if told_by not in self._asked or link is None:
            return
        self._asked.discard(told_by)
        log.warning("the replica %s:%d was promoted: the primary has to know", host, port)
        link.say_successor(host, port, has_all)

    def abandon(self, address: str) -> None:
        """The replica with this address remains a replica, or is one again."""
        if self._feeds.pop(address, None) is None and address not in self._asked:
            return
        self._asked.discard(address)
        if self.standing.link is not None:
            self.standing.link.say_promoting(is_over=True)

    def clear(self) -> None:
        """This server has another role."""
        self._feeds.clear()
        self._asked.clear()


class Handover:
    """`superseded_by` is the address of a promoted server that lacks frames; "" if there is
    none.

    `on_promotion` is called when a replica is being promoted or was, `on_change` when what this
    server refuses may have changed, `follow_promoted(host, port)` for a promoted replica that has
    all frames.
    """

    def __init__(
        self,
        config: Config,
        machine: Machine,
        persistence: Persistence,
        histories: Histories,
        acceptance: Acceptance,
        standing: Standing,
        relay: Relay,
        *,
        on_promotion: Callable[[], None],
        on_change: Callable[[], None],
        follow_promoted: Callable[[str, int], None],
    ) -> None:
        self.config = config
        self.machine = machine
        self.persistence = persistence
        self.histories = histories
        self.acceptance = acceptance
        self.standing = standing
        self.relay = relay
        self.on_promotion = on_promotion
        self.on_change = on_change
        self.follow_promoted = follow_promoted
        self.superseded_by = ""
        # An address, and the newest line here when the server there was promoted.
        self._promoted: tuple[str, str] = ("", "")
        # By address: is being promoted, until then at most.
        self._until_ms: dict[str, int] = {}

    @property
    def is_waiting(self) -> bool:
        """True if a replica is being promoted. It may lack writes that are confirmed meanwhile."""
        if not self._until_ms:  # nearly always; asked for each acknowledgement
            return False
        now_ms = self.machine.steady_clock()
        return any(until_ms > now_ms for until_ms in self._until_ms.values())

    @property
    def is_under_way(self) -> bool:
        """True if nothing may be confirmed here."""
        return bool(self.superseded_by) or self.is_waiting

    def refusal(self) -> str | None:
        """The error of writes."""
        if self.superseded_by:
            return REFUSED.format(self.superseded_by)
        return HANDING_OVER.format(next(iter(self._until_ms))) if self.is_waiting else None

    # Reports of replicas

    def begin(self, feed: Feed) -> None:
        """The replica is being promoted: confirm nothing more, and send the missing frames."""
        log.warning("the replica %s is being promoted", feed.address)
        commits = self.persistence.commits
        if self.standing.is_replica:  # the primary of this server may confirm more
            self.relay.begin(feed)
            return
        commits.flush_tick()
        self._until_ms[feed.address] = self.machine.steady_clock() + PROMOTING_MS
        self.on_promotion()
        self.on_change()
        feed.send_last(encode_last(is_primary=True), commits.last_seq)

    def abandon(self, address: str) -> None:
        """The replica with this address remains a replica, or is one again."""
        self.relay.abandon(address)
        was_promoting = self._until_ms.pop(address, None) is not None
        if self.superseded_by == address:
            self._forget_superseded()
        elif not was_promoting:
            return
        log.warning("the server %s is a replica of this one: writes are accepted", address)
        self.on_change()

    def promoted(self, feed: Feed, value: bytes) -> None:
        """The replica is a primary, or the replica of it that `value` names by host and port; a
        third word says that the named one lacks frames (`Relay`)."""
        commits = self.persistence.commits
        commits.flush_tick()  # the replica lacks the changes of this tick
        last_seq = commits.last_seq
        stored_seq = last_seq if self.config.replicas_durable else 0
        has_all = feed.acked_seq >= last_seq and feed.synced_seq >= stored_seq
        text = value.decode("utf-8", "replace")
        address = text.removesuffix(f" {LACKS_FRAMES}")
        try:
            named = parse_address(address)
        except ValueError as error:
            raise CommandError(f"ERR REPLCONF promoted: {error}") from None
        host, port = named or (feed.host, feed.port)
        self._until_ms.pop(feed.address, None)
        self.end(host, port, has_all and address == text, told_by=feed.address)

    def end(self, host: str, port: int, has_all: bool, told_by: str) -> None:
        """The server with this address, which was a replica of this one, is a primary."""
        if self.standing.is_replica:
            self.relay.promoted(told_by, host, port, has_all)
            return
        address = f"{host}:{port}"
        self.on_promotion()
        self._promoted = address, self.histories.newest
        if has_all:
            log.warning("the replica %s was promoted and has all frames: follow it", address)
            self._until_ms[address] = self.machine.steady_clock() + PROMOTING_MS
            # This is in one of its requests.
            self.machine.scheduler.call_soon(self._follow, host, port)
        else:
            self._until_ms.pop(address, None)
            self.superseded_by = address
            self.acceptance.note(f"{host} {port} -", SUPERSEDED)
            log.error("writes are refused here: %s", LACKS.format(address))
        self.on_change()

    def _follow(self, host: str, port: int) -> None:
        if not self.standing.is_replica and self.is_waiting:
            self.follow_promoted(host, port)

    def is_old(self, address: str, newest_line: str) -> bool:
        """True if the server with this address has sent a request before it was promoted: it has
        no line of its own yet."""
        return self.is_under_way and newest_line != "" and self._promoted == (address, newest_line)

    # This server

    def clear(self) -> None:
        """This server is a primary by order, or has become a replica."""
        self.relay.clear()
        if self._until_ms or self.superseded_by:
            self._until_ms.clear()
            self._forget_superseded()
            self.on_change()

    def _forget_superseded(self) -> None:
        if self.superseded_by:
            self.superseded_by = ""
            self.acceptance.note("")

    def restore(self) -> None:
        """After a restart: refuse writes as before."""
        promoted = self.acceptance.marked(SUPERSEDED)
        if promoted is not None:
            self.superseded_by = "{}:{}".format(*promoted)
            log.error("writes are refused here: %s", LACKS.format(self.superseded_by))

    def tick_second(self) -> None:
        """Accept writes again if a replica has not reported the end of its promotion in time."""
        now_ms = self.machine.steady_clock()
        for address in [one for one, until_ms in self._until_ms.items() if until_ms <= now_ms]:
            del self._until_ms[address]
            log.warning(
                "the replica %s has not become the primary in time: writes are accepted", address
            )
