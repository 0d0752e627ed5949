"""Entering a cluster: the address of a node in the store, and its place in a shard.

The address is bound to the lease of the node, and is written again with each new lease. A node with
the same ID at another address is a copy of this data directory, or the other way round: the second
one is refused while the first one lives. At the same address, which can be an announced one, it may
be this node after a restart. So the first one ends its part: if it lives, it sees that another
process has replaced the address which it wrote.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.server.cluster.cluster_view import ClusterView
from millstream.server.cluster.member_actions import Purpose
from millstream.server.cluster.membership import Member
from millstream.server.cluster.store.records import NODE, SHARD, NodeRecord, encode
from millstream.server.cluster.store.store import Change, Compare

AUTO = "auto"
LEASES_MAX = 4  # that are remembered


@dataclass(eq=False, repr=False)
class Enrollment:
    """`wanted` is the name of the shard to join, or AUTO. `problem` says why this node cannot take
    part; "" if it can."""

    member: Member
    record: NodeRecord
    wanted: str
    problem: str = field(default="", init=False)
    _version: int = field(default=0, init=False)  # of the address, as this process wrote it
    _leases: list[int] = field(default_factory=list, init=False)  # of this process

    def look(self) -> None:
        """Write what is missing."""
        if self.member.view is None and self.member.is_lost:
            self.member.recall(self.record)
        if self.member.may_write:
            if not self._announce():
                self._join()
        elif self.member.ignored is not None and self.member.has_store:
            self._warn(self.member.ignored)

    def _warn(self, ignored: ClusterView) -> None:
        """Write the address also into a store with an older state, for `millstream cluster
        status`: this node runs, and ignores that state."""
        member = self.member
        found = ignored.nodes.get(member.id)
        shard = ignored.shard_of(member.id) or ""
        record = self.record._replace(shard=shard, is_ahead=True)
        if found is not None:
            is_own = found.lease == member.lease.id
            address = found.record.host, found.record.port
            if found.record == record if is_own else address != (record.host, record.port):
                return
        self._write(record, 0 if found is None else found.version)

    def _announce(self) -> bool:
        """Write the address; true if it was not there."""
        member = self.member
        assert member.view is not None
        found = member.view.nodes.get(member.id)
        record = self.record._replace(shard=member.shard)
        self.problem = ""
        if found is not None and (found.record, found.lease) == (record, member.lease.id):
            member.is_announced, self._version = True, found.version
            return False
        if found is not None and found.lease != member.lease.id:
            address = found.record.host, found.record.port
            if address != (record.host, record.port):
                self.problem = (
                    f"the node {member.id} runs at {address[0]}:{address[1]}: this data directory "
                    "is a copy of that one's"
                )
                member.is_announced = False
                return True
            if 0 < self._version < found.version and found.lease not in self._leases:
                self.problem = (
                    f"another process with the ID of this node, {member.id}, has started since: "
                    "one of the data directories is a copy of the other one. Stop one of them"
                )
                member.is_announced = False
                return True
            # It is this node before its restart.
        self._write(record, 0 if found is None else found.version)
        return True

    def _write(self, record: NodeRecord, version: int) -> None:
        """Write the address, with the lease of this node, in place of this version."""
        member = self.member
        self._leases = [*self._leases[1 - LEASES_MAX :], member.lease.id]
        name = NODE + member.id
        change = Change(name, encode(record), member.lease.id)
        member.write(Purpose.ANNOUNCE, [Compare(name, version)], [change])

    def _join(self) -> None:
        """Become a member of a shard with room. A node without data may be one at once: N + 1 and
        M - N of M members share one, also if some of the M have not joined yet. It begins a new
        term, as every change of the members does: an etcd that was restored from before is
        ignored."""
        view = self.member.view
        assert view is not None
        if self.member.shard:
            return
        free = {
            name: found
            for name, found in view.shards.items()
            if len(found.record.members) < found.record.size and self.wanted in (AUTO, name)
        }
        if not free:
            known = self.wanted == AUTO or self.wanted in view.shards
            which = "all shards have" if self.wanted == AUTO else f"shard {self.wanted} has"
            self.problem = (
                f"{which} all members: `millstream cluster add` makes it one more, and `replace` "
                "puts it in place of a lost one"
                if known
                else f"there is no shard {self.wanted}"
            )
            return
        name = min(free, key=lambda one: len(free[one].record.members))
        found = free[name]
        old = found.record
        record = old._replace(term=old.term + 1, members=(*old.members, self.member.id))
        compare = Compare(SHARD + name, found.version)
        change = Change(SHARD + name, encode(record))
        self.member.write(Purpose.JOIN, [compare], [change])
