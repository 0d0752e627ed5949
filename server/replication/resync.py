"""Resynchronization of replicas by a primary: the answers to PSYNC.

A replica says with REPLCONF which lines of history it has and with PSYNC which frame it needs next.
It gets the frames after those that both servers have (a partial sync), the order to cut back what
belongs to a dead line (a rewind), or a complete base and the frames after it (a full sync).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from millstream import __version__
from millstream.commands.admin.replication import Takeover
from millstream.errors import NOT_INTEGER, CommandError, DataError
from millstream.server.config.directives import Config
from millstream.server.config.kinds import UINT32_MAX
from millstream.server.durability.data_files import in_words
from millstream.server.durability.persistence import Persistence
from millstream.server.durability.workers import Machine
from millstream.server.replication import history
from millstream.server.replication.feeds import Feeds
from millstream.server.replication.handover import Handover
from millstream.server.replication.history import NO_HISTORY, Histories
from millstream.server.replication.link_words import (
    CAPABILITIES,
    KNOWS_CODES,
    KNOWS_SHARDS,
    KNOWS_UPSTREAM,
    RETRY,
)
from millstream.server.replication.redis_feeds import RedisFeeds
from millstream.server.replication.standing import Standing

if TYPE_CHECKING:
    from millstream.server.replication.feed import Feed

log = logging.getLogger("millstream.replication")

NODE_LETTERS = 40  # of the ID of a node
TERM_MAX = 2**63 - 1
REWRITE_BYTES = 64 << 20  # a full sync first replaces journals that are larger, and than the base


class Introduction:
    """A replica's description of itself with REPLCONF, before it asks for the data with PSYNC.

    `is_known`: the client is a millstream server that takes effects; `knows_codes`: those with
    codes, too. `is_redis`: it says nothing that only a millstream server says. `upstream`: the IDs
    of servers that it was told; None: it does not want any. `rdb_only`: a program that wants the
    data of this moment, `with_keys` unless it says otherwise. `node`: its ID as a member of a
    shard, `start` a number of its process, `primary` the ID of the primary that it follows there,
    and `term` that one's term; 0: it is in no shard.
    """

    def __init__(self) -> None:
        self.port = 0
        self.address = ""
        self.is_known = self.knows_codes = self.knows_shards = False
        self.is_redis = self.with_keys = True
        self.rdb_only = False
        self.upstream: bytes | None = None
        self.version = ""
        self.databases = 0
        self.histories: tuple[tuple[str, int], ...] = ()
        self.node = self.primary = self.start = ""
        self.term = 0

    @property
    def newest_line(self) -> str:
        return self.histories[-1][0] if self.histories else ""

    def take(self, name: str, value: bytes) -> None:
        """One pair of words of REPLCONF; CommandError for an invalid value."""
        text = value.decode("utf-8", "replace")
        try:
            if name == "listening-port":
                self.port = _number(text, 65535)
            elif name == "ip-address":
                self.address = text[:255]
            elif name == "capa":
                self.is_redis = self.is_redis and not value.startswith(b"millstream")
                self.is_known = self.is_known or value in CAPABILITIES
                self.knows_codes = self.knows_codes or value == KNOWS_CODES
                self.knows_shards = self.knows_shards or value == KNOWS_SHARDS
                if value == KNOWS_UPSTREAM and self.upstream is None:
                    self.upstream = b""
            elif name == "version":
                self.version = text[:80]
            elif name == "databases":
                self.databases = _number(text, UINT32_MAX)
                self.is_redis = False
            elif name == "histories":
                self.histories = history.parse(value)
                self.is_redis = False
            elif name == "node":
                self.node = text[:NODE_LETTERS]
            elif name == "primary":
                self.primary = text[:NODE_LETTERS]
            elif name == "start":
                self.start = text[:NODE_LETTERS]
            elif name == "term":
                self.term = _number(text, TERM_MAX)
            elif name == "rdb-only":
                self.rdb_only = bool(_number(text, 1))
            elif name == "rdb-filter-only":
                if value.strip() not in (b"", b"functions"):
                    raise CommandError(f"ERR Unsupported rdb-filter-only option: {text[:80]}")
                self.with_keys = False
            else:
                raise CommandError(f"ERR Unrecognized REPLCONF option: {name[:80]}")
        except ValueError as error:
            raise CommandError(f"ERR REPLCONF {name}: {error}") from None


def why_unsuitable(said: Introduction | None) -> str:
    """The reason why this client cannot be a replica."""
    if said is not None and said.version:
        return (
            f"ERR the replica has version {said.version} and does not know the effects of this"
            f" server, version {__version__}"
        )
    return (
        "ERR only a millstream server can be a replica of this server: effects are not commands of"
        " Redis"
    )


if TYPE_CHECKING:

    class Members(Protocol):
        """The shard of which this server is a member (`terms`)."""

        def check_member(self, node: str, primary: str, term: int, start: str = "") -> None:
            """CommandError if this server is not this primary, or cannot have the node as a
            replica in this term, or another process with its ID has connected since."""

        def check_lack(self, line: str) -> None:
            """This server lacks frames of a replica, the last of which belongs to this line.
            CommandError if it has lost them."""


class Resync:
    """Partial and full syncs of the replicas of this server, and how many of each there were.

    `take_over(history)` makes this server the primary in place of its own one, `resume` in place of
    one that it had handed over to; `upstream_ids()` are the IDs of servers for a replica.
    `members`: this server is a member of a shard.
    """

    def __init__(
        self,
        config: Config,
        machine: Machine,
        persistence: Persistence,
        histories: Histories,
        feeds: Feeds,
        standing: Standing,
        handover: Handover,
        *,
        redis_feeds: RedisFeeds,
        take_over: Callable[[bytes], None],
        resume: Callable[[], None],
        upstream_ids: Callable[[], bytes],
        databases: int,
    ) -> None:
        self.config = config
        self.machine = machine
        self.persistence = persistence
        self.histories = histories
        self.feeds = feeds
        self.standing = standing
        self.handover = handover
        self.redis_feeds = redis_feeds
        self.take_over = take_over
        self.resume = resume
        self.upstream_ids = upstream_ids
        self.databases = databases
        self.full_syncs = 0
        self.partial_syncs = 0
        self.refused_partial_syncs = 0
        self.members: Members | None = None
        self._introductions: dict[int, Introduction] = {}

    def introduce(self, client: Any, pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
        """REPLCONF: a replica's description of itself. Returns the answer: OK, and the IDs of
        servers if the replica wants them. CommandError for an invalid value."""
        if client.feed is not None and client.id not in self.feeds.by_client:
            raise CommandError("ERR this connection has a backup: it cannot be a replica")
        for name, value in pairs:
            word = name.decode("ascii", "replace").lower()
            if word in ("promoting", "promoted") and self.members is not None:
                raise CommandError(f"ERR REPLCONF {word} is not for members of a shard")
            if client.feed is None and word == "promoted":
                self._promoted(client, value)
            elif client.feed is None or word not in ("promoting", "promoted"):
                self._introductions.setdefault(client.id, Introduction()).take(word, value)
            elif word == "promoted":
                self.handover.promoted(client.feed, b"" if value == b"1" else value)
            elif value == b"0":
                self.handover.abandon(client.feed.address)
            else:
                self.handover.begin(client.feed)
        said = self._introductions.get(client.id)
        if said is None or said.upstream is None:
            return b"OK"
        said.upstream = self.upstream_ids()
        return b"OK " + said.upstream

    def _promoted(self, client: Any, value: bytes) -> None:
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
        commits = self.persistence.commits
        commits.flush_tick()  # it lacks the changes of this tick
        ours, our_last = self.histories.lines, commits.last_seq
        common = history.last_common(ours, our_last, said.histories, their_last)
        if common is None:
            raise CommandError("ERR the promoted server has no line of history of this server")
        host = said.address or _host_of(client.address)
        has_stored = their_last >= our_last or not self.config.replicas_durable
        has_all = common >= our_last and has_stored
        self.handover.end(host, said.port, has_all, told_by=f"{host}:{said.port}")

    def forget(self, client: Any) -> None:
        """A client has disconnected. Clients other than replicas have no record."""
        self._introductions.pop(client.id, None)

    def tick_second(self) -> None:
        """Begin the full syncs that waited for a new base."""
        for feed in self.feeds:
            if feed.state == "wait_bgsave":
                self._send_base(feed)

    def is_redis(self, client: Any) -> bool:
        """True unless the client has said that it is a millstream server."""
        said = self._introductions.get(client.id)
        return said is None or said.is_redis

    def sync(self, client: Any, position: tuple[bytes, int] | None) -> None:
        """SYNC, or PSYNC of a Redis with the ID of a stream and the offset of the next byte: send
        the data of this moment, or the commands after that position. CommandError when that is
        impossible."""
        from millstream.server.replication.redis_feed import Wanted, redis_for

        said = self._introductions.get(client.id, Introduction())
        wanted = Wanted(
            redis_for(said.version, self.config.replica_redis_version),
            said.with_keys,
            uses_psync=position is not None,
            stays=not said.rdb_only,
        )
        host = said.address or _host_of(client.address)
        self.redis_feeds.begin(client, host, said.port, wanted, position)

    def psync(self, client: Any, next_seq: int, takeover: Takeover | None) -> None:
        """Answer PSYNC, and send the missing frames. CommandError when that is impossible."""
        said = self._introductions.get(client.id)
        if client.feed is not None:
            raise CommandError("ERR this connection is already the link of a replica")
        if said is None or not said.knows_codes:
            raise CommandError(why_unsuitable(said))
        if self.members is not None:
            self.members.check_member(said.node, said.primary, said.term, said.start)
        elif said.term:
            raise CommandError("NOMASTERLINK this server is a member of no shard")
        if takeover is not None:
            self._take_over(said, takeover, next_seq)
        self._resume_before(client, said)
        self._check_can_feed(said)
        self.histories.require_line()
        ours, our_last = self.histories.lines, self.persistence.commits.last_seq
        their_last = next_seq - 1
        common = history.last_common(ours, our_last, said.histories, their_last)
        if self.members is not None and common is not None and their_last > common:
            self.members.check_lack(said.newest_line)
        if common is not None and their_last > common and self._only_lags(said):
            raise CommandError("NOMASTERLINK this server has not received your last frames yet")
        address = said.address or _host_of(client.address)
        if self.handover.is_old(f"{address}:{said.port}", said.newest_line):
            raise CommandError(
                "NOMASTERLINK this request is older than the promotion of its server"
            )
        feed = self.feeds.add(client, address, said.port, said.node)
        feed.upstream, feed.takes_shard_messages = said.upstream, said.knows_shards
        self.handover.abandon(feed.address)
        self.machine.scheduler.call_soon(self._answer, feed, common, their_last)

    def _resume_before(self, client: Any, said: Introduction) -> None:
        """This server has handed over to a promoted server. If that one was ordered to follow
        this one, there is no other primary."""
        link = self.standing.link
        if link is None or link.line_before is None:
            return
        if said.newest_line == link.line_before != "":
            return  # it was sent before that server was promoted
        if (said.address or _host_of(client.address), said.port) == (link.host, link.port):
            self.resume()

    def _take_over(self, said: Introduction, takeover: Takeover, next_seq: int) -> None:
        """Become the primary in place of the server that asks (FAILOVER). If this server could not
        feed it, or has lost frames since it acknowledged them, refuse: a refused server stays a
        primary.

        If the answer was lost, the server asks again. By then this server is a primary, or follows
        a later one; a refusal that ended the failover would leave two primaries.
        """
        self.histories.require_line()
        if self._is_ahead_of(said, takeover.history, next_seq):
            try:
                self._check_can_feed(said)
            except CommandError as error:
                raise CommandError(f"{RETRY} {error.message}") from None
            return
        self._check_files(said)
        if not (takeover.is_forced or self._has_all_of(said, next_seq)):
            last_seq = self.persistence.commits.last_seq
            raise CommandError(
                f"ERR this replica has the frames up to {last_seq}, and its primary has"
                f" {next_seq - 1}: it would lose the others"
            )
        link = self.standing.link
        if link is not None and link.is_of_handover:
            link.mark(is_of_handover=False)
            raise CommandError(f"{RETRY} this server stores that it does not follow you any more")
        self.take_over(takeover.history)

    def _has_all_of(self, said: Introduction, next_seq: int) -> bool:
        """True if this server has all frames of the other one."""
        ours, our_last = self.histories.lines, self.persistence.commits.last_seq
        return history.last_common(ours, our_last, said.histories, next_seq - 1) == next_seq - 1

    def _is_ahead_of(self, said: Introduction, name: bytes, next_seq: int) -> bool:
        """True if this server has all frames of the other one, whose newest line is `name`, and a
        newer line."""
        newest = self.histories.lines[-1:]
        return self._has_all_of(said, next_seq) and newest[0][0].encode() != name

    def _check_can_feed(self, said: Introduction) -> None:
        link = self.standing.link
        if link is not None and not link.is_connected:
            raise CommandError(
                "NOMASTERLINK Can't SYNC while not connected with my master "
                f"{link.address} (if servers follow each other, or one follows itself, send one of"
                " them REPLICAOF NO ONE)"
            )
        self._check_files(said)

    def _check_files(self, said: Introduction) -> None:
        if not self.config.appendonly:
            raise CommandError(
                "ERR this server has appendonly off: it needs a journal to feed replicas"
            )
        if not self.persistence.commits.attached or self.persistence.writable_error() is not None:
            raise CommandError("NOMASTERLINK the journal of this server is not working")
        if said.databases < self.databases:
            raise CommandError(
                f"ERR the replica has {said.databases} databases, this server has {self.databases}"
            )

    def _only_lags(self, said: Introduction) -> bool:
        """True if this server is itself a replica and has not received yet what the other one
        has."""
        newest = self.histories.lines[-1]
        return self.standing.is_replica and newest in said.histories

    def _answer(self, feed: Feed, common: int | None, their_last: int) -> None:
        if feed.client.closed or feed.client.feed is not feed:
            return
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
            self._begin_full_sync(feed, -1 if common is None else common)

    def oldest_needed(self) -> int:
        """The lowest frame after which this server has all others."""
        backlog = self.feeds.backlog
        base_seq = self.persistence.base_seq
        return base_seq if backlog is None else min(base_seq, backlog.first_seq - 1)

    def _has_frames_from(self, seq: int) -> bool:
        return seq > self.oldest_needed() or seq > self.persistence.commits.last_seq

    def _newest(self) -> bytes:
        return (self.histories.newest or NO_HISTORY).encode()

    def _name_at(self, seq: int) -> bytes:
        names = [name for name, first in self.histories.lines if first <= seq]
        return (names[-1] if names else NO_HISTORY).encode()

    def _begin_full_sync(self, feed: Feed, common_seq: int) -> None:
        self.full_syncs += 1
        feed.wait_for_base(common_seq)
        frames = self.persistence
        journals_bytes = frames.current_bytes() - frames.base_bytes
        if (
            journals_bytes > max(frames.base_bytes, REWRITE_BYTES)
            and not frames.snapshots.suspended
        ):
            if frames.snapshots.job is None:
                log.info("a new base is written for the replica %s", feed.address)
                frames.snapshots.rewrite()
        else:
            self._send_base(feed)

    def _full_sync_answer(self, feed: Feed, seq: int, size_bytes: int) -> bytes:
        numbers = (seq, size_bytes, feed.common_seq, self.persistence.commits.frame_bytes)
        return b"+FULLRESYNC %s %d %d %d %d\r\n" % (self._newest(), *numbers)

    def _send_base(self, feed: Feed) -> None:
        """Send the newest base, unless one is being written for this replica."""
        frames = self.persistence
        if frames.snapshots.job is not None or not frames.commits.attached:
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
        from millstream.storage.files.snapshot_reader import SnapshotEnds

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


def _number(text: str, most: int) -> int:
    number = int(text) if text.isdecimal() else -1
    if not 0 <= number <= most:
        raise ValueError(f"it must be between 0 and {most}")
    return number
