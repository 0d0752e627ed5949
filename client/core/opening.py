"""The beginning of a stream: from a position to the shards with their places.

Nothing of the stream changes until the shards are complete, so a move that fails leaves the stream
where it was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from millstream.client.core import requests
from millstream.client.core.position import After, End, Moment, Newest, Oldest, Start
from millstream.client.core.repeating import repeated
from millstream.client.core.servers import ServerState
from millstream.client.core.shard_order import Info, Servers, ShardOrder
from millstream.client.core.shards import Shard, ShardState, shard_name
from millstream.client.core.steps import Ask, Steps
from millstream.client.core.token import Place, Token
from millstream.client.core.words import text
from millstream.client.errors import InvalidStream
from millstream.client.events import Gap
from millstream.client.ids import BEGINNING, ID

NOW = "$"


def open_lineage(
    shards: Sequence[Shard], start: Start, servers: Servers, create: bool, end: End | None = None
) -> Steps[ShardOrder]:
    """The shards of a stream that begins at a position. Raises InvalidStream, and the errors of
    the servers."""
    opening = Opening(shards, servers)
    if isinstance(start, Token):
        yield from opening.from_token(start)
    else:
        yield from opening.from_start(start, create)
    if end is not None:
        opening.lineage.end_at((yield from opening.find_end(end)))
    return opening.lineage


class Opening:
    def __init__(self, shards: Sequence[Shard], servers: Servers) -> None:
        self.listed = {shard_name(shard): shard for shard in shards}
        self.servers = servers
        self.found: dict[str, tuple[Shard, Info | None]] = {}
        """Every shard that was looked up, and its TINFO; None if the key does not exist."""
        self.lineage = ShardOrder(tuple(self.listed), servers)
        for name, shard in self.listed.items():
            self.lineage.names[servers.of(shard).whole, text(shard.key)] = name

    # ------------------------------------------------------------ an end or a time

    def from_start(
        self, start: Oldest | Newest | Moment | After, create: bool
    ) -> Steps[ShardOrder]:
        yield from self.look_up(self.listed.values())
        if create:
            yield from self.create_missing()
        if not isinstance(start, Oldest):
            # The children of a sealed shard begin at the same position as the shard.
            yield from self.look_up_descendants()
        for shard, info in self.found.values():
            if info is not None or shard_name(shard) in self.listed:
                self.add(shard, info, Place(BEGINNING, fresh=not isinstance(start, Newest)))
        self.connect()
        if not isinstance(start, Oldest):
            yield from self.find_places(start)
        return self.lineage

    def create_missing(self) -> Steps[None]:
        missing = [shard for shard, info in self.found.values() if info is None]
        yield from self.send(missing, lambda shard: requests.create_if_missing(shard.key))

    def look_up_descendants(self) -> Steps[None]:
        while True:
            unseen = [
                child
                for name, (shard, info) in list(self.found.items())
                for child in self.children(shard, info)
                if shard_name(child) not in self.found
            ]
            if not unseen:
                return
            yield from self.look_up({shard_name(child): child for child in unseen}.values())

    def children(self, shard: Shard, info: Info | None) -> list[Shard]:
        if info is None:
            return []
        names = map(text, info["children"])
        return [self.lineage.child(name, shard) for name in names]

    def find_places(self, start: Newest | Moment | After) -> Steps[None]:
        """One TMREAD for all shards of a server."""
        by_server = self.by_server(shard for shard, _ in self.found.values())
        word = NOW
        if not isinstance(start, Newest):
            self.lineage.since = start.place
            word = str(start.place)
        asks = []
        states = []
        for server, shards in by_server.items():
            known = [s for shard in shards if (s := self.lineage.states.get(shard_name(shard)))]
            if known:
                streams = [(state.key, word) for state in known]
                asks.append(Ask(server, [requests.tmread(streams, 0, None, False)]))
                states.append(known)
        for [rows], known in zip((yield from repeated(asks)), states, strict=True):
            for state, row in zip(known, rows, strict=True):
                state.place = state.anchor = row.prev
                state.fetched = row.next
                state.incarnation = state.place_incarnation = row.incarnation
                state.ended = row.ended

    # ------------------------------------------------------------ a token

    def from_token(self, token: Token) -> Steps[ShardOrder]:
        self.token = token
        self.lineage.keys |= token.keys
        wanted = self.named_in_token(self.listed)
        yield from self.look_up([*self.listed.values(), *wanted.values()])
        ancestors = yield from self.look_up_ancestors(wanted)
        above = ancestors | self.named_in_token(ancestors)
        yield from self.look_up(s for name, s in above.items() if name not in self.found)
        names = set(self.found)
        if not names & token.names():
            shown = ", ".join(repr(name) for name in self.listed)
            raise InvalidStream(f"the token is for other shards; it has no position for {shown}")
        self.lineage.since = token.since
        self.lineage.done |= token.done
        self.lineage.before |= token.early
        for name in sorted(names - self.lineage.done.keys()):
            self.restore(name, token.places.get(name))
        self.refuse_if_gone()
        self.connect()
        yield from self.learn_children()
        return self.lineage

    def named_in_token(self, shards: dict[str, Shard]) -> dict[str, Shard]:
        """The shards that the token has after these ones."""
        wanted: dict[str, Shard] = {}
        names = list(shards.items())
        while names:
            name, shard = names.pop()
            for child in self.token.children(name):
                if child in self.listed or child in wanted or child == name:
                    continue
                if name in self.token.places and child not in self.token.names():
                    continue  # not opened: it is looked up when its parent was read
                wanted[child] = self.child_in_token(child, shard)
                names.append((child, wanted[child]))
        return wanted

    def child_in_token(self, name: str, parent: Shard) -> Shard:
        return self.lineage.child(self.token.keys.get(name, name), parent, name)

    def look_up_ancestors(self, wanted: Collection[str]) -> Steps[dict[str, Shard]]:
        """The ancestors in the token of listed shards that the token does not have.

        The shards between an ancestor and a listed shard are added to `found`.
        """
        reached: dict[str, Shard] = {}
        for name in self.listed.keys() - self.token.names() - set(wanted):
            path, tops = yield from self.climb(name)
            if not tops:
                continue  # no shard of the token comes before it: it starts at its beginning
            if all(top in self.token.done for top in tops):
                # Its ancestors were read to their end, and the stream does not continue in it.
                self.lineage.done[name] = ()
            else:
                reached |= tops
                self.found |= path
        return reached

    def climb(
        self, name: str
    ) -> Steps[tuple[dict[str, tuple[Shard, Info | None]], dict[str, Shard]]]:
        known = self.token.names()
        path: dict[str, tuple[Shard, Info | None]] = {}
        tops: dict[str, Shard] = {}
        level = [self.found[name]]
        while level:
            parents: dict[str, Shard] = {}
            for shard, info in level:
                for parent in map(text, (info or {}).get("parents", ())):
                    above = self.lineage.child(parent, shard)
                    name = shard_name(above)
                    if name in known:
                        tops[name] = self.listed.get(name, above)
                    elif name not in path and name not in self.listed:
                        parents[name] = above
            infos = yield from self.infos(parents.values())
            level = [(shard, infos[parent]) for parent, shard in parents.items()]
            path |= dict(zip(parents, level, strict=True))
        return path, tops

    def restore(self, name: str, place: Place | None) -> None:
        shard, info = self.found[name]
        if place is None:
            fresh = name in self.listed
            self.add(shard, info, Place(BEGINNING, fresh=fresh))
            return
        state = self.add(shard, info, place)
        state.fetched = self.lineage.start_of(state)
        replaced = info is None or (place.incarnation or 0) != info["incarnation"]
        if place.end is not None and replaced and place.incarnation is not None:
            self.end_without_key(state, place)

    def end_without_key(self, state: ShardState, place: Place) -> None:
        """The shard was sealed and deleted; the token has the shards that follow it."""
        assert place.end is not None
        state.ended = True
        state.fetched = max(place.at, place.end)
        state.children = tuple(self.child_in_token(name, state.shard()) for name in place.children)
        if place.at < place.end:
            state.gaps.append(Gap(state.name, place.at, None))

    def refuse_if_gone(self) -> None:
        restored = [name for name in self.lineage.states if name in self.token.places]
        if not restored or any(self.lineage.states[name].ended for name in restored):
            return
        if all(self.found[name][1] is None for name in restored):
            shown = ", ".join(repr(name) for name in restored)
            raise InvalidStream(
                f"no shard of the token exists, and it does not say where they continue: {shown}"
            )

    def learn_children(self) -> Steps[None]:
        """Look for the children of shards that are at their end."""
        infos = yield from self.infos([shard for shard, _ in self.lineage.unknown()])
        for name, info in infos.items():
            self.lineage.learn(name, info)

    # ------------------------------------------------------------ both

    def add(self, shard: Shard, info: Info | None, place: Place) -> ShardState:
        state = ShardState.at(shard, self.servers.of(shard), place)
        if info is not None and place.incarnation is None:
            state.incarnation = state.place_incarnation = info.get("incarnation")
        self.lineage.add(state)
        return state

    def find_end(self, end: End) -> Steps[ID]:
        """The last ID that is wanted. The newest record is that of all shards together, so that a
        stream that continues there has no record below one of this stream."""
        if not isinstance(end, Newest):
            return end.place
        yield from self.look_up_descendants()
        by_server = self.by_server(s for s, info in self.found.values() if info is not None)
        asks = [
            Ask(server, [requests.tmread([(s.key, NOW) for s in shards], 0, None, False)])
            for server, shards in by_server.items()
        ]
        answers = (yield from repeated(asks)) if asks else []
        return max((row.next for [rows] in answers for row in rows), default=BEGINNING)

    def connect(self) -> None:
        """Let every shard wait for its parents."""
        for state in self.lineage.states.values():
            _, info = self.found[state.name]
            if info is None:
                continue
            state.parents = self.lineage.parents_of(info, state.server) - {state.name}
            if info["sealed"] and state.children is None:
                self.lineage.set_children(state, info)

    def look_up(self, shards: Iterable[Shard]) -> Steps[None]:
        shards = list(shards)
        infos = yield from self.infos(shards)
        for shard in shards:
            self.found[shard_name(shard)] = shard, infos[shard_name(shard)]

    def infos(self, shards: Iterable[Shard]) -> Steps[dict[str, Info | None]]:
        return (yield from self.send(shards, lambda shard: requests.tinfo(shard.key)))

    def send(self, shards: Iterable[Shard], make: Any) -> Steps[dict[str, Any]]:
        """One command for each shard, in one round trip to each server."""
        by_server = self.by_server(shards)
        asks = [Ask(server, [make(shard) for shard in of]) for server, of in by_server.items()]
        if not asks:
            return {}
        answers = yield from repeated(asks)
        return {
            shard_name(shard): reply
            for of, replies in zip(by_server.values(), answers, strict=True)
            for shard, reply in zip(of, replies, strict=True)
        }

    def by_server(self, shards: Iterable[Shard]) -> dict[ServerState, list[Shard]]:
        found: dict[ServerState, list[Shard]] = {}
        for shard in shards:
            found.setdefault(self.servers.of(shard), []).append(shard)
        return found
