"""The order of shards: parents before their children.

A sealed shard that was read to its end is replaced by its children. A child is read when all of
its parents in this stream have been read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from millstream.client.core.argument_checks import function
from millstream.client.core.servers import ServerState
from millstream.client.core.shards import Shard, ShardState, parse_shard, shard_name
from millstream.client.core.token import Place, Token
from millstream.client.core.words import key_word, text
from millstream.client.errors import InvalidStream
from millstream.client.events import Event, Gap, ShardEnded, ShardOpened
from millstream.client.ids import BEGINNING, ID
from millstream.client.log import log

Info: TypeAlias = Mapping[str, Any]
Resolve: TypeAlias = Callable[[str], Shard | None]
Done: TypeAlias = tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]


class Servers:
    """The servers of a stream, one for each connection. `check` raises an error for an invalid
    client."""

    def __init__(
        self,
        default: Any,
        resolve: Resolve | None,
        check: Callable[[Any], None] = lambda client: None,
        place: Callable[[Any, Any], tuple[Any, Any]] = lambda client, key: (client, client),
    ) -> None:
        """`place` finds the node of a key in a cluster, and the whole cluster."""
        self._place = place
        self._default = default
        self._resolve: Resolve | None = function("resolve", resolve)
        self._check = check
        self._states: dict[Any, ServerState] = {}

    def of(self, shard: Shard) -> ServerState:
        given = self._default if shard.client is None else shard.client
        client, whole = self._place(given, shard.key)
        if client not in self._states:
            self._check(client)
            self._states[client] = ServerState(client, whole)
        return self._states[client]

    def child(self, key: str, parent: Shard) -> Shard:
        """The child of a shard, by the name that the parent has for it: on the same server, unless
        `resolve` returns another one.

        A parent whose name is not its key gives its children names of the same form, because
        streams with one key on several servers have children with one key, too.
        """
        found = self.resolve(key)
        if found is not None:
            return Shard(found.key, found.client, found.name or key)
        return Shard(key_word(key), parent.client, child_name(key, parent))

    def resolve(self, name: str) -> Shard | None:
        """The child that the user's function returns; None for a child on the same server."""
        found: Any = None if self._resolve is None else self._resolve(name)
        if inspect.isawaitable(found):
            if inspect.iscoroutine(found):
                found.close()
            raise InvalidStream("resolve must be a plain function, not one that has to be awaited")
        if found is None:
            return None
        shard = parse_shard(found)
        self.of(shard)
        return shard

    def __iter__(self) -> Any:
        return iter(self._states.values())


def child_name(key: str, parent: Shard) -> str:
    """`orders.1@oslo` for the child `orders.1` of the shard `orders@oslo` with the key `orders`."""
    own, name = text(parent.key), shard_name(parent)
    if name == own:
        return key
    return key + name.removeprefix(own) if name.startswith(own) else f"{key}@{name}"


@dataclass(eq=False, slots=True)
class ShardOrder:
    """The shards of a stream: those that are read, those that wait for their parents, and what
    became of those that were read to their end."""

    roots: Collection[str]
    """The names of the shards that the stream was made with."""
    servers: Servers
    states: dict[str, ShardState] = field(default_factory=dict)
    done: dict[str, tuple[str, ...]] = field(default_factory=dict)
    infos: dict[str, Info] = field(default_factory=dict)
    """TINFO of children that exist and were not opened yet."""
    before: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For shards that are done: the names of the shards before them."""
    names: dict[tuple[Hashable, str], str] = field(default_factory=dict)
    """The names of shards by server, or cluster, and key."""
    keys: dict[str, str] = field(default_factory=dict)
    """For children with a name of their own: the name that their parent has for them."""
    carried: dict[str, tuple[Place, list[Gap]]] = field(default_factory=dict)
    """The places of deleted shards, until the gaps there are reported."""
    orphans: list[Gap] = field(default_factory=list)
    """Gaps at the end of shards without children."""
    since: ID = BEGINNING
    """The place of the time that the stream began at. It may be in the future: a shard that has not
    passed it is not read below it, and neither is a shard after it."""
    until: ID | None = None
    """The last ID that is wanted; None if the stream has no end."""
    end: ID = BEGINNING
    """The greatest final ID of a shard that was read to its end."""
    _done_for_token: Done | None = None
    """See `done_for_token`; None after a change."""

    def live(self) -> list[ShardState]:
        """The shards that are being read."""
        return [state for state in self.states.values() if not state.parents]

    def child(self, key: str, parent: Shard, name: str | None = None) -> Shard:
        """The child of a shard, by the name that the parent has for it. `name` is its own name if a
        token has it. One stream has one name, even if several parents continue in it."""
        shard = self.servers.child(key, parent)
        if name is None:
            name = shard_name(shard)
        place = self.servers.of(shard).whole, text(shard.key)
        if place not in self.names:
            if name in self.names.values():
                name = f"{key}@{shard_name(parent)}"
            if name in self.names.values():
                raise InvalidStream(
                    f"two shards have the name {name!r}: give the shards that continue in them, or "
                    "those that `resolve` returns, names of their own"
                )
            self.names[place] = name
        name = self.names[place]
        if name != key:
            self.keys[name] = key
        return Shard(shard.key, shard.client, name)

    # ------------------------------------------------------------ unknown shards

    def unknown(self) -> list[tuple[Shard, ServerState]]:
        """The shards whose TINFO is needed now: ended ones, and children that may not exist."""
        needed: dict[str, tuple[Shard, ServerState]] = {}
        for state in self.states.values():
            if not state.ended:
                continue
            if state.children is None:
                needed[state.name] = Shard(state.key, None, state.name), state.server
            for child in state.children or ():
                if not self.knows(shard_name(child)):
                    needed[shard_name(child)] = child, self.servers.of(child)
        return list(needed.values())

    def unknown_children(self) -> list[tuple[Shard, ServerState]]:
        """Those of `unknown()` that are children."""
        found = self.unknown()
        return [(s, server) for s, server in found if shard_name(s) not in self.states]

    def knows(self, name: str) -> bool:
        return name in self.states or name in self.done or name in self.infos

    def learn(self, name: str, info: Info | None) -> None:
        """The reply of TINFO for a shard of `unknown()`; None if the key does not exist."""
        state = self.states.get(name)
        if state is None:
            if info is not None:
                self.infos[name] = info
        elif info is not None and info.get("incarnation") != state.incarnation:
            state.ended = False  # created again: the next read finds that out
        elif state.ended and state.children is None:
            if info is None:
                log.warning(
                    "shard %r: its key was deleted before its children were looked up; the stream "
                    "does not know in which shards it continues",
                    name,
                )
            self.set_children(state, info or {})

    def set_children(self, state: ShardState, info: Info) -> None:
        names = [text(child) for child in info.get("children", ())]
        children = tuple(self.child(name, state.shard()) for name in names)
        state.final = info.get("handed-out-id")
        state.named_parents = tuple(map(text, info.get("parents", state.named_parents)))
        state.children = children  # last: with them, the shard is replaced

    def continued_by(self, name: str) -> tuple[str, ...]:
        """The ended shards of this stream of which this one is a child."""
        ended = {s.name: tuple(map(shard_name, s.children or ())) for s in self.states.values()}
        return tuple(parent for parent, names in (self.done | ended).items() if name in names)

    def resolve_again(self, name: str) -> bool:
        """A child does not exist where it was looked for. Returns whether `resolve` names another
        place."""
        found = self.servers.resolve(self.keys.get(name, name))
        if found is None:
            return False
        moved = Shard(found.key, found.client, name)
        place = self.servers.of(moved).whole, text(moved.key)
        if place in self.names:
            return False  # where it was, or another shard of this stream
        self.names[place] = name
        for state in self.states.values():
            if state.children is not None:
                state.children = tuple(
                    moved if shard_name(child) == name else child for child in state.children
                )
        return True

    def parents_of(self, info: Info, server: ServerState) -> set[str]:
        """The names of the parents that are in this stream and not read to their end."""
        found = set()
        for parent in map(text, info.get("parents", ())):
            name = self.names.get((server.whole, parent), parent)
            found |= {other for other in (name, parent) if other in self.states}
        return found

    def place_again(self) -> bool:
        """A node of a cluster has refused a shard: ask the nodes that serve the shards now. False
        if all are where they were."""
        places = {name: self.servers.of(state.shard()) for name, state in self.states.items()}
        moved = [name for name, place in places.items() if self.states[name].server is not place]
        for name in moved:
            self.states[name].server = places[name]
        return bool(moved)

    # ------------------------------------------------------------ replacing

    def copy(self) -> ShardOrder:
        """A lineage to change and to use instead. A signal handler may raise anywhere, and a half
        of a change would lose shards."""
        return replace(
            self,
            states=dict(self.states),
            done=dict(self.done),
            infos=dict(self.infos),
            before=dict(self.before),
            names=dict(self.names),
            keys=dict(self.keys),
            carried=dict(self.carried),
            orphans=list(self.orphans),
        )

    @property
    def is_settled(self) -> bool:
        """True if `settle` would change nothing."""
        return not any(map(self._is_over, self.live()))

    def settle(self) -> list[Event]:
        """Replace every shard that was handed out to its end and whose children exist."""
        events: list[Event] = []
        while (state := next(filter(self._is_over, self.live()), None)) is not None:
            events += self._replace(state)
        return events

    def _is_over(self, state: ShardState) -> bool:
        if not state.ended or state.buffer or state.children is None:
            return False
        return all(self.knows(shard_name(child)) for child in state.children)

    def _replace(self, state: ShardState) -> list[Event]:
        children = state.children or ()
        names = tuple(map(shard_name, children))
        if state.gaps:
            self.carried[state.name] = state.found(), list(state.gaps)
        self._done_for_token = None
        del self.states[state.name]
        self.done[state.name] = names
        self.before[state.name] = tuple(
            self.names.get((state.server.whole, parent), parent) for parent in state.named_parents
        )
        self.end = max(self.end, state.fetched)
        floor = state.settled_up_to
        start = self.start_after(state)
        opened = [self.open(child, start, state.gaps) for child in children]
        for child in opened:
            if child is not None:
                child.floor = floor
        if not any(opened):
            self.orphans += state.gaps
        freed = [
            replace(other, parents=other.parents - {state.name})
            for other in self.states.values()
            if state.name in other.parents
        ]
        self.states |= {other.name: other for other in freed}
        fresh = [child for child in opened if child is not None]
        return [
            ShardEnded(state.name, names),
            *(ShardOpened(s.name) for s in dict.fromkeys([*fresh, *freed]) if not s.parents),
        ]

    def end_at(self, until: ID) -> None:
        """Nothing above this ID is wanted."""
        self.until = until
        for state in self.states.values():
            state.until = until

    def add(self, state: ShardState) -> None:
        state.until = self.until
        self.states[state.name] = state
        self.names[state.server.whole, text(state.key)] = state.name

    def start_after(self, state: ShardState) -> ID:
        """The beginning of a shard's child, or of a new stream with the shard's key."""
        return self.since if state.fetched <= self.since else BEGINNING

    def start_of(self, state: ShardState) -> ID:
        """The place of a shard that was restored from a token."""
        return max(state.fetched, self.start_after(state))

    def open(self, child: Shard, start: ID, gaps: Iterable[Gap] = ()) -> ShardState | None:
        """Add a child at its beginning, or at `start`. None if it was opened before: a child is
        opened once."""
        name = shard_name(child)
        if name in self.states or name in self.done:
            return None
        info = self.infos.pop(name)
        server = self.servers.of(child)
        place = Place(start, info.get("incarnation"))
        state = ShardState.at(child, server, place)
        state.parents = self.parents_of(info, server)
        state.named_parents = tuple(map(text, info.get("parents", ())))
        state.gaps = list(gaps)
        self.add(state)
        return state

    # ------------------------------------------------------------ gaps and tokens

    def report(self, gap: Gap) -> None:
        """A gap is reported: once, even if several children came after it."""
        self._done_for_token = None
        for name, (_, gaps) in list(self.carried.items()):
            gaps[:] = [other for other in gaps if other != gap]
            if not gaps:
                del self.carried[name]
        self.orphans = [other for other in self.orphans if other != gap]
        for state in self.states.values():
            if gap in state.gaps:
                state.gaps.remove(gap)
                if gap.shard == state.name and gap.resumed is not None:
                    state.place = state.anchor = gap.resumed
                    state.place_incarnation = state.incarnation
                if not state.buffer:
                    state.reach()

    def token(self) -> Token:
        """The place of the stream."""
        after_gaps = {
            name
            for name, state in self.states.items()
            if any(gap.shard in self.carried for gap in state.gaps)
        }
        places = {
            name: state.found() for name, state in self.states.items() if name not in after_gaps
        }
        carried = {name: place for name, (place, _) in self.carried.items()}
        done, early = self.done_for_token()
        shown = {*done, *places, *carried}
        shown.update(child for name in places for child in places[name].children)
        keys = {name: self.keys[name] for name in sorted(shown) if name in self.keys}
        passed = all(place.at > self.since for place in places.values())
        return Token({**places, **carried}, done, early, keys, BEGINNING if passed else self.since)

    def done_for_token(self) -> Done:
        """The finished shards in a token: where each continues now, and which were finished
        early. Computing this takes longer with each split, so it is kept until the next one."""
        if self._done_for_token is None:
            self._done_for_token = self._find_done_for_token()
        return self._done_for_token

    def _find_done_for_token(self) -> Done:
        early = self._early(self.carried)
        done = {
            name: self._unfinished(name)
            for name in dict.fromkeys([*self.roots, *early])
            if name in self.done and name not in self.carried
        }
        return done, {name: early[name] for name in done if name in early}

    def _early(self, carried: Collection[str]) -> dict[str, tuple[str, ...]]:
        """The shards that are done although a shard before them is not, with those before. They
        would be opened again after a restore if the token did not say that they are done."""
        found = {}
        for name, parents in self.before.items():
            unread = [other for other in parents if other not in self.done or other in carried]
            if unread:
                found[name] = tuple(unread)
        return found

    def _unfinished(self, name: str) -> tuple[str, ...]:
        """The shards in which a shard that is done continues now."""
        found: dict[str, None] = {}
        seen: set[str] = set()
        names = [name]
        while names:
            one = names.pop()
            if one in seen:
                continue
            seen.add(one)
            if one in self.done and one not in self.carried:
                names += reversed(self.done[one])
            else:
                found[one] = None
        return tuple(found)
