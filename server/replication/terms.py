"""This server as a member of a shard: the terms in which it is the primary or a replica.

A shard is a few servers with the same data. In each *term* at most one of them is its primary; who
that is, and what the next term is, is decided elsewhere (server/cluster), which gives the orders.
This module carries them out. A late order, or an old primary, must not damage the data:

* A member promises terms. It acknowledges nothing to the primary of a lower term than it has
  promised, also after a restart: the promise is in the data directory, and an acknowledgement or
  an answer to `promise` is sent only once it is there.
* The primary of a term writes its first frame at once, with the term in the effect HISTORY, and
  confirms nothing before enough members have that frame (`Confirming`).
* The records of a link and the acknowledgements name the term.
* Of two processes with the ID of one node, the first one ends its part. A primary sees that it has
  connected again after the second one, so it has not ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

from millstream.commands.admin.cluster_peers import LastFrame
from millstream.errors import CommandError
from millstream.server.durability.persistence import Persistence
from millstream.server.durability.workers import Machine
from millstream.server.execution.executor import Executor
from millstream.server.replication.accepting_primary import Acceptance
from millstream.server.replication.confirming import Confirming
from millstream.server.replication.feeds import Feeds
from millstream.server.replication.history import Histories
from millstream.server.replication.link import Link, State
from millstream.server.replication.link_connection import Connector
from millstream.server.replication.link_hooks import LinkHooks
from millstream.server.replication.receiver import Receiver
from millstream.server.replication.resync import Resync
from millstream.server.replication.standing import Standing
from millstream.server.replication.write_refusals import Restrictions
from millstream.storage.keyspace.keyspace import Keyspace

log = logging.getLogger("millstream.replication")

STARTS_MAX = 16  # processes of a node that are remembered
NODES_MAX = 64
COPIED = (
    "another server with the ID of this node has connected since: one of the data directories is a "
    "copy of the other one. Stop one server, and start the other one again"
)
# A link that is refused for the moment, because an order has not arrived there yet, is retried.
_AGAIN_S = 0.1


class Parts(Protocol):
    """The parts of replication, and the changes of the role (`role.Role`)."""

    machine: Machine
    keyspace: Keyspace
    persistence: Persistence
    executor: Executor
    histories: Histories
    acceptance: Acceptance
    standing: Standing
    feeds: Feeds
    restrictions: Restrictions
    resync: Resync
    link_hooks: LinkHooks

    @property
    def link(self) -> Link | None: ...
    @property
    def receiver(self) -> Receiver: ...
    def take_link(self, host: str, port: int) -> Link:
        """Become a replica; the link does not connect yet."""

    def follow_no_primary(self, is_independent: bool) -> None:
        """Become a primary."""


class Sign(NamedTuple):
    """The last sign of life of another member: its last frame, as far as this server knows; the
    time of the sign, on the wall clock; and whether that is less than the node timeout ago."""

    frame: int
    heard_ms: int
    is_recent: bool


class Terms:
    """The orders to one member. `term` is that in which it is the primary (`is_leading`) or follows
    one; 0: no order has arrived yet. `primary` is the node that it follows; "": none, or itself.

    The methods raise CommandError when an order must not be carried out; nothing has changed then.
    """

    def __init__(
        self,
        role: Parts,
        connector: Connector,
        node: str,
        node_timeout_ms: Callable[[], int],
        lease_ms: Callable[[], int],
    ) -> None:
        self.node = node
        self.term = 0
        self.primary = ""
        self._role = role
        self._persistence = role.persistence
        self._histories = role.histories
        self._acceptance = role.acceptance
        self._source = role.feeds.source
        self._connector = connector
        connector.node = node
        connector.start = role.persistence.files.disk.random(8).hex()
        self._starts: dict[str, list[str]] = {}  # of nodes: those of their processes, in order
        self.is_copied = False
        self._members: frozenset[str] = frozenset()
        self.confirming = Confirming(
            role.machine, role.persistence, role.executor, role.feeds, role.standing,
            role.restrictions.hold_point, node_timeout_ms, lease_ms,
        )  # fmt: skip
        role.restrictions.confirming = self.confirming
        role.resync.members = self
        role.link_hooks.on_confirmed = self.confirming.confirmed
        role.link_hooks.on_refused = self._refused

    def start(self) -> None:
        """The data is loaded: there is no order yet."""
        self._stand()

    # What others ask

    @property
    def is_leading(self) -> bool:
        return self.confirming.is_leading

    @property
    def promised(self) -> int:
        """The greatest term that was promised. Who has a frame of a term has promised that, too."""
        return max(self._acceptance.promised, *self._persistent_terms())

    def _persistent_terms(self) -> tuple[int, ...]:
        return (0, *self._role.keyspace.line_terms.values())

    @property
    def is_promise_stored(self) -> bool:
        """True if the promise holds also after a restart; it must not be told before."""
        return self._acceptance.is_stored

    def standing(self) -> LastFrame:
        """The last frame on the disk. CommandError if the data here is not known well enough."""
        self._refuse_doubt()
        return self._last_frame()

    def _last_frame(self) -> LastFrame:
        seq = self._persistence.commits.on_disk_seq
        name, term = self._histories.line_at(seq)
        return LastFrame(term, name, seq)

    @property
    def last_seq(self) -> int:
        """The last frame here."""
        return self._persistence.commits.last_seq

    @property
    def is_down(self) -> bool:
        """True while requests are refused: on a primary, perhaps only writes."""
        return self.confirming.is_down

    def confirming_members(self) -> int:
        """The number of other members with a recent acknowledgement in this term."""
        return self.confirming.members if self.is_leading else 0

    def acknowledged_frame(self, node: str) -> int:
        """The last frame that a replica, perhaps one that does not count, has on its disk in this
        term; 0: none."""
        return self._role.feeds.synced_by(node) if self.is_leading else 0

    def may_confirm(self) -> bool:
        """True if this server is the primary and may run requests of clients."""
        return self.confirming.may_confirm()

    def beat(self) -> None:
        """As the primary: tell the replicas that this server works. They acknowledge it."""
        self.confirming.look_at_time()
        if self.is_leading:
            self._role.feeds.beat(self._role.machine.clock())

    def silence_ms(self) -> int | None:
        """The time since the followed primary has sent something; None: it is not linked."""
        link = self._role.link
        if link is None or not link.is_connected:
            return None
        return self._role.machine.steady_clock() - link.heard_ms

    def sign_of(self, node: str) -> Sign | None:
        """The last sign of life of the primary of this server, or of a replica of it; None without
        a link that is up."""
        link = self._role.link
        if link is not None and node == self.primary and link.is_connected:
            frame, heard_ms = link.last_beat_seq, link.heard_ms
            frame = max(frame, self._persistence.commits.last_seq)  # more since the last beat
        else:
            feed = next((one for one in self._role.feeds if one.node == node), None)
            if feed is None or not feed.is_online:
                return None
            frame, heard_ms = feed.acked_seq, feed.acked_ms
        machine = self._role.machine
        silence_ms = machine.steady_clock() - heard_ms
        is_recent = silence_ms <= self.confirming.node_timeout_ms()
        return Sign(frame, machine.clock() - silence_ms, is_recent)

    # Orders

    def promise(self, term: int) -> None:
        """Acknowledge no lower term from now on, and lead none. `is_promise_stored` says when the
        promise holds."""
        self._refuse_lower(term)
        self._refuse_doubt()
        self._acceptance.note_promise(term)
        if self.term < term:
            self._stand()

    def lead(self, term: int, members: Collection[str], durable: int) -> None:
        """Be the primary of this term, with these members of the shard (with or without this one),
        `durable` of which must confirm each frame besides this one. Again in the same term: only
        the members and their number have changed."""
        if self.is_leading and term == self.term:
            self._set_size(members, durable)
            self.confirming.update()
            return
        self.promise(term)
        self._stand()
        self._set_size(members, durable)
        self.term = self._histories.term = term
        self.primary = ""
        self.confirming.prepare()
        log.warning("this server is to be the primary of its shard in term %d", term)
        self._role.follow_no_primary(is_independent=True)

    def has_begun(self) -> None:
        """This server is a primary. Its first frame follows at once, so that its term can be
        confirmed, and with it the frames before."""
        self._source.term = self.term
        if not self._members and not self._role.feeds:
            self._role.feeds.drop_backlog()
        self._histories.require_line()
        self.confirming.begin(self._persistence.commits.last_seq)

    def follow(self, host: str, port: int, node: str, term: int, durable: int) -> None:
        """Be a replica of this node, the primary of this term, which is a promise of the term, too.
        `durable` as in `lead`."""
        self._refuse_copy()
        self._refuse_lower(term)
        if self.is_leading and term == self.term:
            raise CommandError(f"ERR this server is the primary of term {term}")
        self._set_size(self._members, durable)
        link = self._role.link
        is_same = link is not None and (link.host, link.port) == (host, port)
        if link is not None and is_same and term == self.term and link.state != State.STOPPED:
            self.confirming.update()
            return
        self._acceptance.note_promise(term)
        self._end_leading()
        self.confirming.has_left = False
        self.term = self._connector.term = term
        self.primary = self._connector.primary = node
        link = self._role.take_link(host, port)
        log.warning("this server follows %s, the primary of term %d", link.address, term)
        self._role.machine.scheduler.call_soon(link.connect)

    def leave(self) -> None:
        """This server is no member of its shard any more."""
        self._stand()
        self.confirming.leave()

    def require_lease(self, is_required: bool) -> None:
        """With `durable` 0: this server confirms only in its lease although it knows no other
        member: there may be one."""
        if self.confirming.requires_lease is not is_required:
            self.confirming.requires_lease = is_required
            self.confirming.update()

    def extend_lease(self, until_ms: int) -> None:
        """Until then, on the clock of leases, the lease of this primary certainly lasts; 0: there
        is none. With `durable` 0, it may confirm until then; otherwise, serve reads."""
        self.confirming.extend_lease(until_ms)

    def _set_size(self, members: Collection[str], durable: int) -> None:
        self._members = frozenset(members) - {self.node}
        self.confirming.set_size(durable, self._members)

    def _refuse_lower(self, term: int) -> None:
        if term < self.promised:
            raise CommandError(f"ERR term {self.promised} was promised already")

    def _refuse_doubt(self) -> None:
        """CommandError if no frame's number says what the data here is: a choice by that number
        could lose what is confirmed."""
        self._refuse_copy()
        receiver = self._role.receiver
        if receiver.is_changing:
            raise CommandError("LOADING the data of this server is being replaced")
        if self._persistence.commits.on_disk_seq < 0:
            raise CommandError("ERR the journal of this server does not work")
        if receiver.is_wrong or not self._is_known(self._last_frame()):
            raise CommandError("ERR the data of this server may be wrong or incomplete")

    def _refuse_copy(self) -> None:
        if self.is_copied:
            raise CommandError(f"ERR {COPIED}")

    def _is_known(self, last: LastFrame) -> bool:
        return last.history != "" or last.number == 0

    def _end_leading(self) -> None:
        if self.is_leading:  # what has run in this turn belongs to the term that ends
            self._persistence.commits.flush_tick()
        self._histories.term = 0
        self.confirming.end()

    def _stand(self) -> None:
        """Follow no primary, and lead no term."""
        self._end_leading()
        self.primary = ""
        link = self._role.link
        if link is None:
            self._role.take_link("", 0).stop()
        elif link.state is not State.STOPPED:
            if not self._role.receiver.is_wrong:
                self._role.receiver.apply_all()  # the more this server has, the better
            link.stop()
        self.confirming.update()

    # Links

    def check_member(self, node: str, primary: str, term: int, start: str = "") -> None:
        """CommandError if this server is not this primary, or cannot have the node as a replica in
        this term. Terms of several shards are the same, and an old address may be that of a node of
        another shard by now."""
        if not self.is_leading:
            raise CommandError("NOMASTERLINK this server is not the primary of its shard")
        if not node or not term:
            raise CommandError("ERR only members of its shard can be replicas of this server")
        if term != self.term:
            raise CommandError(f"NOMASTERLINK this server is the primary of term {self.term}")
        if primary != self.node:
            raise CommandError(f"NOMASTERLINK this server is another node, {self.node}")
        if start:
            self._check_start(node, start)

    def _check_start(self, node: str, start: str) -> None:
        """CommandError if another process with this ID has connected after this one, which
        therefore lives although that one has started: one has a copy of the other one's data."""
        starts = self._starts.pop(node, [])
        self._starts[node] = starts
        if start in starts[:-1]:
            log.error("two servers run with the ID of the node %s", node)
            raise CommandError(f"ERR {COPIED}")
        if start not in starts:
            starts.append(start)
            del starts[:-STARTS_MAX]
        if len(self._starts) > NODES_MAX:
            del self._starts[next(iter(self._starts))]

    def check_lack(self, line: str) -> None:
        """A replica has frames of this line that this server lacks. Those of the present term were
        sent by this server, which has lost them since: a member that has them has to lead.
        CommandError then."""
        if self._role.keyspace.line_terms.get(line) == self.term:
            log.error(
                "a member has frames of term %d that this server has sent and has lost: it does "
                "not lead this term any more", self.term,
            )  # fmt: skip
            self.promise(self.term + 1)
            raise CommandError("NOMASTERLINK this server has lost frames of its term")

    def _refused(self, text: str) -> bool:
        link = self._role.link
        if text.endswith(COPIED) and not self.is_copied:
            self.is_copied = True
            log.critical("this server takes no part in its shard any more: %s", text)
            self._role.machine.scheduler.call_soon(self._stand)
        elif link is not None:
            self._role.machine.scheduler.call_later(_AGAIN_S, self._connect_again, link)
        return False

    def _connect_again(self, link: Link) -> None:
        if self._role.link is link:
            link.connect()
