"""Requests to the servers of a stream: the choice of them, repetitions, and waits.

Only shards with nothing buffered are asked. While records are buffered and held back, the shards
that hold them back are asked again soon; with nothing buffered, the servers are asked to wait for
entries.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from millstream.client.core import requests
from millstream.client.core.deadlines import WAIT_MAX_S, block_ms
from millstream.client.core.missing_shards import Absent, missing_child
from millstream.client.core.options import Options
from millstream.client.core.position import After, Moment
from millstream.client.core.servers import ServerState
from millstream.client.core.shard_order import Servers, ShardOrder
from millstream.client.core.shards import Shard, ShardState, shard_name
from millstream.client.core.steps import Ask, Clock
from millstream.client.errors import MillstreamError, ShardUnavailable
from millstream.client.ids import ID

HELD_FIRST_S = 0.001
HELD_MAX_S = 0.05
LOOK_UP_FIRST_S = 0.01
LOOK_UP_MAX_S = 1.0
HEARTBEAT_S = 5.0
AT_ONCE_S = 0.5
"""For how long a call that does not wait for records waits for the answer to an ask."""


@dataclass(frozen=True, slots=True)
class Read:
    """About an ask with one TMREAD: the shards that it reads, and their places."""

    shards: list[ShardState]
    places: list[ID]
    blocking: bool


@dataclass(frozen=True, slots=True)
class LookUp:
    """About an ask with one TINFO for each of these shards."""

    names: list[str]


@dataclass(frozen=True, slots=True)
class Create:
    """About an ask with one TCREATE for each of these shards."""

    shards: list[ShardState]


class NextAsk:
    """The time of the next ask: after a short time, then after longer and longer ones."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self.reset()

    def reset(self) -> None:
        self._next_s = self._first_s
        self.at_s = float("-inf")

    def due(self, now_s: float) -> bool:
        return now_s >= self.at_s

    def asked(self, now_s: float) -> None:
        self.at_s = now_s + self._next_s
        self._next_s = min(self._next_s * 2, self._most_s)


class Asking:
    """The requests of one stream: those to send now, and those in flight."""

    def __init__(self, servers: Servers, options: Options, now: Clock) -> None:
        self.held = NextAsk(HELD_FIRST_S, HELD_MAX_S)
        """For shards that hold others back."""
        self.looking = NextAsk(LOOK_UP_FIRST_S, LOOK_UP_MAX_S)
        """For children that do not exist yet."""
        self.requests = 0
        self._servers = servers
        self._options = options
        self._now = now
        self.lineage = ShardOrder((), servers)
        """The shards of the stream, as the follower has them."""
        self.begin(creates=False)

    def begin(self, creates: bool) -> None:
        """The stream has other shards from now on. `creates`: whether missing ones are created."""
        self._creates = creates
        self.absent = Absent(self._options.max_wait_s)
        self.held.reset()
        self.looking.reset()

    def in_flight(self) -> list[Ask]:
        return [ask for server in self._servers for ask in server.in_flight]

    # ------------------------------------------------------------ the choice of asks

    def wants(self, now_s: float, patience_s: float, asked: set[ShardState]) -> list[Ask]:
        """The asks to send now. `asked` are the shards that this call has asked already."""
        live = self.lineage.live()
        buffered = any(state.buffer for state in live)
        again = self.held.due(now_s)
        asks: list[Ask] = []
        paced = False
        for server, shards in by_server(live).items():
            if not server.may_ask(now_s):
                continue
            waiting, at_once = covered(server, blocking=True), covered(server, blocking=False)
            todo = [s for s in shards if s.to_fetch and s not in at_once]
            blocking = False
            if buffered or (patience_s > 0 and waiting):
                if patience_s > 0 and not buffered:
                    todo = [s for s in todo if s not in waiting]
                todo = todo if again else []
                paced = paced or bool(todo)
            elif patience_s > 0:
                blocking = True
            else:
                todo = [s for s in todo if s not in asked]
                asked.update(todo)
            if todo:
                asks.append(self._tmread(server, todo, patience_s if blocking else None))
        if paced:
            self.held.asked(now_s)
        asks += self._look_ups(now_s)
        asks += self._creations(now_s, live)
        self._sent(asks, now_s)
        return asks

    def heartbeats(self, now_s: float) -> list[Ask]:
        """One ask for each server that was not asked for a while, to send now."""
        idle = {
            server
            for server in self._servers
            if now_s - server.last_ask_s >= HEARTBEAT_S and server.may_ask(now_s)
        }
        to_fetch = [s for s in self.lineage.live() if s.to_fetch]
        looking = [ask for ask in self._look_ups(now_s) if ask.server in idle]
        busy = [ask.server for ask in looking]
        reads = [
            self._tmread(server, shards, None)
            for server, shards in by_server(to_fetch).items()
            if server in idle and server not in busy
        ]
        asks = [*looking, *reads]
        self._sent(asks, now_s)
        return asks

    def _sent(self, asks: list[Ask], now_s: float) -> None:
        for ask in asks:
            server = ask.server
            assert isinstance(server, ServerState)
            server.asked(ask, now_s)
        self.requests += len(asks)

    def _tmread(self, server: ServerState, shards: list[ShardState], wait_s: float | None) -> Ask:
        places = [shard.fetched for shard in shards]
        keys = [shard.key for shard in shards]
        command = requests.tmread(
            zip(keys, places, strict=True),
            self._options.batch,
            None if wait_s is None else block_ms(wait_s),
            self.needs_clock(),
            read=requests.same,
        )
        return Ask(server, [command], Read(shards, places, wait_s is not None))

    def needs_clock(self) -> bool:
        if self._options.clock is not None:
            return self._options.clock
        # Without promises, a shard with no entry after the end of the stream would never end.
        ends = isinstance(self._options.end, (Moment, After))
        return ends or (self._options.strict and len(self.lineage.states) > 1)

    def _look_ups(self, now_s: float) -> list[Ask]:
        if not self.looking.due(now_s):
            return []
        unknown: dict[ServerState, list[Shard]] = {}
        for shard, server in self.lineage.unknown():
            looked_up = any(isinstance(ask.about, LookUp) for ask in server.in_flight)
            if server.may_ask(now_s) and not looked_up:
                unknown.setdefault(server, []).append(shard)
        if unknown:
            self.looking.asked(now_s)
            self.looking.at_s = min(self.looking.at_s, self.absent.next_end_s(now_s))
        return [
            Ask(
                server,
                [requests.tinfo(shard.key) for shard in shards],
                LookUp([str(shard.name) for shard in shards]),
            )
            for server, shards in unknown.items()
        ]

    def _creations(self, now_s: float, live: list[ShardState]) -> list[Ask]:
        """A shard that does not exist promises nothing, and would hold the others back."""
        if not self._creates or not self._options.strict or len(live) < 2:
            return []
        missing = [s for s in live if s.missing_since_s is not None and s.server.may_ask(now_s)]
        return [
            Ask(server, [requests.create_if_missing(s.key) for s in shards], Create(shards))
            for server, shards in by_server(missing).items()
            if not any(isinstance(ask.about, Create) for ask in server.in_flight)
        ]

    def learns_ends(self, now_s: float) -> bool:
        """True if the children of a shard that was fetched to its end will soon be known."""
        return any(
            state.ended and state.children is None and self._looks_up(state.server, now_s)
            for state in self.lineage.states.values()
        )

    def _looks_up(self, server: ServerState, now_s: float) -> bool:
        if server.failing:
            return False
        asked = any(isinstance(ask.about, LookUp) for ask in server.in_flight)
        return asked or self.looking.due(now_s)

    # ------------------------------------------------------------ how long to wait

    def due_until_s(self, now_s: float) -> list[float]:
        """For the servers that have something to answer at once: until when a call waits for them.
        A server that fails, or does not answer for longer than this, is not waited for."""
        ends = [
            ask.started_s + AT_ONCE_S
            for server in self._servers
            if not server.failing
            for ask in server.in_flight
            if ask.wait_s == 0
        ]
        return [end_s for end_s in ends if end_s > now_s]

    def pause_s(self, now_s: float, patience_s: float, due: list[float]) -> float:
        """The time to wait for an answer before something else has to be done."""
        if patience_s <= 0 and not due:
            return 0.0
        moments = [now_s + WAIT_MAX_S]
        if patience_s > 0:
            moments += [now_s + patience_s, *self._moments(now_s)]
        else:
            moments += due
        moments += self._silence_ends(now_s)
        return max(0.0, min(moments) - now_s)

    def _moments(self, now_s: float) -> list[float]:
        """The time at which the next repetition is due."""
        # A time that is over does not count: the server was not asked, because of another one.
        moments = [
            server.retry_at_s
            for server in self._servers
            if server.failing and not server.in_flight and server.retry_at_s > now_s
        ]
        idle = any(state.to_fetch for state in self.lineage.live())
        if idle and not self.held.due(now_s):
            moments.append(self.held.at_s)
        if not self.looking.due(now_s) and self.lineage.unknown():
            moments.append(self.looking.at_s)
        return moments

    # ------------------------------------------------------------ silence

    def _silence_ends(self, now_s: float) -> list[float]:
        """The time at which a server will have been silent for too long."""
        limit_s = self._options.max_wait_s
        if limit_s is None:
            return []
        ends = [since_s + limit_s for server in self._servers for since_s in server.due_since_s()]
        return [end for end in ends if end > now_s]

    def check_silence(self, begun_s: float = float("-inf")) -> None:
        """Raise ShardUnavailable if a shard that is needed has been silent for too long, or a child
        missing. A call that began at `begun_s` and still waits looks for the child first."""
        limit_s = self._options.max_wait_s
        if limit_s is None:
            return
        now_s = self._now()
        live = self.lineage.live()
        held_back = self._options.strict and any(state.buffer for state in live)
        for state in live:
            if state.buffer or state.complete:
                continue
            since_s = state.server.silent_since_s(now_s)
            if since_s is not None and now_s - since_s >= limit_s:
                raise ShardUnavailable(state.name, state.server.cause)
            since_s = state.missing_since_s
            if held_back and since_s is not None and now_s - since_s >= limit_s:
                cause = MillstreamError(
                    f"the key {state.key!r} does not exist, and records of other shards wait for "
                    "it; create it with TCREATE, or make the stream without this shard"
                )
                raise ShardUnavailable(state.name, cause)
            if self.absent.too_long(state.name, begun_s):
                parents = self.lineage.continued_by(state.name)
                if parents:
                    raise ShardUnavailable(state.name, missing_child(state.key, parents))
        self._check_children(limit_s, now_s, begun_s)

    def _check_children(self, limit_s: float, now_s: float, begun_s: float) -> None:
        for child, server in self.lineage.unknown_children():
            name = shard_name(child)
            since_s = server.silent_since_s(now_s)
            if since_s is not None and now_s - since_s >= limit_s:
                raise ShardUnavailable(name, server.cause)
            if self.absent.too_long(name, begun_s):
                parents = self.lineage.continued_by(name)
                raise ShardUnavailable(name, missing_child(child.key, parents))


def by_server(states: Iterable[ShardState]) -> dict[ServerState, list[ShardState]]:
    found: dict[ServerState, list[ShardState]] = {}
    for state in states:
        found.setdefault(state.server, []).append(state)
    return found


def covered(server: ServerState, blocking: bool) -> set[ShardState]:
    """The shards that an ask in flight reads."""
    if not server.in_flight:
        return set()
    return {
        shard
        for ask in server.in_flight
        if isinstance(ask.about, Read) and ask.about.blocking == blocking
        for shard in ask.about.shards
    }
