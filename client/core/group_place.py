"""The place of a consumer in its stream, in case its group has to be created again.

A group vanishes with its key, by XGROUP DESTROY, at the end of its time to live, or with a server
that restarts without its data. "From now on" would then be a later moment than the one that the
consumer began at, and the entries in between would not be delivered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from millstream.client.core.requests import GroupState
from millstream.client.ids import BEGINNING, ID, just_below

Info = Mapping[str, Any]


class GroupPlace:
    """The incarnation of the stream, and an ID up to which the group has delivered everything that
    this consumer knows of."""

    def __init__(self) -> None:
        self._incarnation: int | None = None
        self._reached = BEGINNING

    def saw(self, info: Info | None, state: GroupState | None) -> None:
        """The stream and the group at one moment. Pending entries do not count as delivered."""
        if info is None:
            return
        if info["incarnation"] != self._incarnation:
            self._incarnation = info["incarnation"]
            self._reached = BEGINNING
        if state is not None and not state.pending:
            self.reach(state.last_delivered)

    def begin(self, info: Info | None, state: GroupState | None) -> None:
        """The consumer joins the group: entries that were delivered before do not count."""
        if info is not None and state is not None:
            self._incarnation = info["incarnation"]
            self._reached = state.last_delivered

    def reach(self, entry_id: ID) -> None:
        """An entry was delivered to this consumer."""
        self._reached = max(self._reached, entry_id)

    def fall_back(self, ids: Iterable[ID]) -> None:
        """Delivered entries were dropped: the group has to deliver them again."""
        self._reached = min(self._reached, just_below(min(ids)))

    def again(self, info: Info | None) -> ID:
        """The entry after which a recreated group begins. In a new stream, at the oldest."""
        if info is None or info["incarnation"] != self._incarnation:
            return BEGINNING
        return self._reached
