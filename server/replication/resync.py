"""How a primary brings its replicas up to date: the answers to PSYNC.

A replica says with REPLCONF which lines of history it has and with PSYNC which frame it needs next.
It gets the frames after those that both servers have (a partial sync), the order to cut back what
belongs to a dead line (a rewind), or a complete base and the frames after it (a full sync).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from millstream.errors import NOT_INTEGER, CommandError, DataError
from millstream.server.durability.data_files import in_words
from millstream.server.replication import history
from millstream.server.replication.link import RETRY
from millstream.server.replication.replconf import Introduction, why_unsuitable
from millstream.server.replication.replication_info import NO_HISTORY
from millstream.storage.files.snapshot_reader import SnapshotEnds

if TYPE_CHECKING:
    from millstream.commands.admin.replication import Takeover
    from millstream.server.replication.feed import Feed
    from millstream.server.replication.role import Replication

log = logging.getLogger("millstream.replication")

REWRITE_BYTES = 64 << 20  # a full sync first replaces journals that are larger, and than the base


class Resync:
    """Partial and full syncs of the replicas of this server, and how many of each there were."""

    def __init__(self, role: Replication) -> None:
        self.full_syncs = self.partial_syncs = self.refused_partial_syncs = 0
        self._role = role
        self._node = role.node
        self._introductions: dict[int, Introduction] = {}

    def introduce(self, client: Any, name: str, value: bytes) -> None:
        """Record what a replica says about itself; CommandError for an invalid value."""
        self._introductions.setdefault(client.id, Introduction()).take(name, value)

    def answer_to(self, client: Any) -> bytes:
        """The answer to an introduction: OK, and the IDs of servers if the replica wants them."""
        said = self._introductions.get(client.id)
        if said is None or said.upstream is None:
            return b"OK"
        said.upstream = self._role.told_upstream()
        return b"OK " + said.upstream

    def announced(self, client: Any, value: bytes) -> None:
        """A server that was a replica of this one has been promoted; `value` is the last frame on
        its disk, which counts with `replicas-durable`. CommandError if it was no replica of this
        server."""
        said = self._introductions.get(client.id)
        if said is None or not said.is_known:
            raise CommandError(why_unsuitable(said))
        try:
            their_last = int(value)
        except ValueError:
            raise CommandError(NOT_INTEGER) from None
        frames = self._node.persistence
        frames.flush_tick()  # it lacks the changes of this tick
        ours, our_last = self._node.keyspace.histories, frames.last_seq
        common = history.last_common(ours, our_last, said.histories, their_last)
        if common is None:
            raise CommandError("ERR the promoted server has no line of history of this server")
        host = said.address or _host_of(client.address)
        has_stored = their_last >= our_last or not self._node.config.replicas_durable
        self._role.handover.end(host, said.port, has_all=common >= our_last and has_stored)

    def forget(self, client: Any) -> None:
        """A client has disconnected. Clients other than replicas have no record."""
        self._introductions.pop(client.id, None)

    def tick_second(self) -> None:
        """Begin the full syncs that waited for a new base."""
        for feed in self._role.feeds:
            if feed.state == "wait_bgsave":
                self._send_base(feed)

    def psync(self, client: Any, next_seq: int, takeover: Takeover | None) -> None:
        """Answer PSYNC, and send what the replica lacks. CommandError when that is impossible."""
        said = self._introductions.get(client.id)
        if client.feed is not None:
            raise CommandError("ERR this connection is already the link of a replica")
        if said is None or not said.is_known:
            raise CommandError(why_unsuitable(said))
        if takeover is not None:
            self._take_over(said, takeover, next_seq)
        self._resume_before(client, said)
        self._check_can_feed(said)
        node = self._node
        self.begin_line()
        ours, our_last = node.keyspace.histories, node.persistence.last_seq
        their_last = next_seq - 1
        common = history.last_common(ours, our_last, said.histories, their_last)
        if common is not None and their_last > common and self._only_lags(said):
            raise CommandError("NOMASTERLINK this server has not received your last frames yet")
        address = said.address or _host_of(client.address)
        if self._role.handover.is_old(f"{address}:{said.port}", said.newest_line):
            raise CommandError(
                "NOMASTERLINK this request is older than the promotion of its server"
            )
        feed = self._role.feeds.add(client, address, said.port)
        feed.upstream = said.upstream
        self._role.handover.abandon(feed.address)
        node.loop.call_soon(self._answer, feed, common, their_last)

    def _resume_before(self, client: Any, said: Introduction) -> None:
        """This server has handed over to a promoted server. If that one was ordered to follow
        this one, there is no other primary."""
        following = self._role.following
        if following is None or not following.may_resume:
            return
        if said.newest_line == following.line_before != "":
            return  # it was sent before that server was promoted
        if (said.address or _host_of(client.address), said.port) == (
            following.host,
            following.port,
        ):
            self._role.resume()

    def begin_line(self) -> None:
        """A position has to be in a line of history, also before the first change."""
        frames = self._node.persistence
        if self._role.following is None and frames.first_effect is not None:
            frames.flush_tick()
            if frames.first_effect is not None:
                frames.commit(b"")

    def _take_over(self, said: Introduction, takeover: Takeover, next_seq: int) -> None:
        """Become the primary in place of the server that asks (FAILOVER). If this server could not
        feed it, or has lost frames since it acknowledged them, refuse: a refused server stays a
        primary.

        If the answer was lost, the server asks again. By then this server is a primary, or follows
        a later one; a refusal that ended the failover would leave two primaries.
        """
        self.begin_line()
        if self._is_ahead_of(said, takeover.history, next_seq):
            try:
                self._check_can_feed(said)
            except CommandError as error:
                raise CommandError(f"{RETRY} {error.message}") from None
            return
        self._check_files(said)
        if not (takeover.is_forced or self._has_all_of(said, next_seq)):
            last_seq = self._node.persistence.last_seq
            raise CommandError(
                f"ERR this replica has the frames up to {last_seq}, and its primary has"
                f" {next_seq - 1}: it would lose the others"
            )
        following = self._role.following
        if following is not None and following.is_of_handover:
            following.mark(is_of_handover=False)
            raise CommandError(f"{RETRY} this server stores that it does not follow you any more")
        self._role.take_over(takeover.history)

    def _has_all_of(self, said: Introduction, next_seq: int) -> bool:
        """Whether this server has all frames of the other one."""
        ours, our_last = self._node.keyspace.histories, self._node.persistence.last_seq
        return history.last_common(ours, our_last, said.histories, next_seq - 1) == next_seq - 1

    def _is_ahead_of(self, said: Introduction, name: bytes, next_seq: int) -> bool:
        """Whether this server has all frames of the other one, whose newest line is `name`, and a
        newer line."""
        newest = self._node.keyspace.histories[-1:]
        return self._has_all_of(said, next_seq) and newest[0][0].encode() != name

    def _check_can_feed(self, said: Introduction) -> None:
        following = self._role.following
        if following is not None and not following.is_connected:
            raise CommandError(
                "NOMASTERLINK Can't SYNC while not connected with my master "
                f"{following.host}:{following.port} (if servers follow each other, or one follows "
                "itself, send one of them REPLICAOF NO ONE)"
            )
        self._check_files(said)

    def _check_files(self, said: Introduction) -> None:
        node = self._node
        if not node.config.appendonly:
            raise CommandError(
                "ERR this server has appendonly off: it needs a journal to feed replicas"
            )
        if not node.persistence.attached or node.persistence.writable_error() is not None:
            raise CommandError("NOMASTERLINK the journal of this server is not working")
        databases = len(node.keyspace.databases)
        if said.databases < databases:
            raise CommandError(
                f"ERR the replica has {said.databases} databases, this server has {databases}"
            )

    def _only_lags(self, said: Introduction) -> bool:
        """Whether this server is itself a replica and has not received yet what the other one
        has."""
        newest = self._node.keyspace.histories[-1]
        return self._role.following is not None and newest in said.histories

    def _answer(self, feed: Feed, common: int | None, their_last: int) -> None:
        if feed.client.closed or feed.client.feed is not feed:
            return
        feed.common_seq = -1 if common is None else common
        if common is not None and their_last > common and common >= self.oldest_needed():
            self.refused_partial_syncs += 1
            feed.send(b"-REWIND %s %d\r\n" % (self._name_at(common), common))
            feed.client.close(after_reply=True)
        elif common == their_last and self._has_frames_from(common + 1):
            self.partial_syncs += 1
            log.info("the replica %s continues after frame %d", feed.address, common)
            feed.begin(b"+CONTINUE %s\r\n" % self._newest(), common + 1)
        else:
            self.refused_partial_syncs += their_last > 0
            self._begin_full_sync(feed)

    def oldest_needed(self) -> int:
        """The lowest frame after which this server has all others."""
        ring = self._role.feeds.ring
        base_seq = self._node.persistence.base_seq
        return base_seq if ring is None else min(base_seq, ring.first_seq - 1)

    def _has_frames_from(self, seq: int) -> bool:
        return seq > self.oldest_needed() or seq > self._node.persistence.last_seq

    def _newest(self) -> bytes:
        histories = self._node.keyspace.histories
        return (histories[-1][0] if histories else NO_HISTORY).encode()

    def _name_at(self, seq: int) -> bytes:
        names = [name for name, first in self._node.keyspace.histories if first <= seq]
        return (names[-1] if names else NO_HISTORY).encode()

    def _begin_full_sync(self, feed: Feed) -> None:
        self.full_syncs += 1
        frames = self._node.persistence
        journals_bytes = frames.current_bytes() - frames.base_bytes
        if (
            journals_bytes > max(frames.base_bytes, REWRITE_BYTES)
            and not frames.snapshots.suspended
        ):
            feed.state = "wait_bgsave"
            if frames.snapshots.job is None:
                log.info("a new base is written for the replica %s", feed.address)
                frames.snapshots.rewrite()
        else:
            self._send_base(feed)

    def _full_sync_answer(self, feed: Feed, seq: int, size_bytes: int) -> bytes:
        numbers = (seq, size_bytes, feed.common_seq, self._node.persistence.frame_bytes)
        return b"+FULLRESYNC %s %d %d %d %d\r\n" % (self._newest(), *numbers)

    def _send_base(self, feed: Feed) -> None:
        """Send the newest base, unless one is being written for this replica."""
        feed.state = "wait_bgsave"
        frames = self._node.persistence
        if frames.snapshots.job is not None or not frames.attached:
            return
        name = frames.files.manifest.base
        if name is None:
            log.info("full sync: the replica %s gets all frames", feed.address)
            feed.begin_full_sync(self._full_sync_answer(feed, 0, 0), 1, None)
            return
        try:
            base = frames.files.disk.read(name)
        except FileNotFoundError:  # a rewrite has just replaced it; the next second tries again
            return
        except OSError as error:
            feed.drop(f"{name} cannot be opened: {in_words(error)}")
            return
        try:
            header = SnapshotEnds(base).read_header()
        except (OSError, DataError) as error:
            base.close()
            feed.drop(str(error))
            return
        if not header.has_identity:
            base.close()
            frames.snapshots.rewrite()
            return
        log.info("full sync: the replica %s gets %s, %d bytes", feed.address, name, base.size)
        answer = self._full_sync_answer(feed, header.seq, base.size)
        feed.begin_full_sync(answer, header.seq + 1, base)


def _host_of(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")
