"""The callbacks of a link."""

from __future__ import annotations

from collections.abc import Callable


class LinkHooks:
    """Callbacks of a link. `on_change`: what this server refuses may have changed. `on_refused`
    returns whether the error has ended a FAILOVER, and this link. `on_last` gets the record LAST:
    whether the sender is a primary. `on_confirmed` gets the number of the last frame that enough
    members of the shard have."""

    def __init__(
        self,
        *,
        on_change: Callable[[], None],
        on_linked: Callable[[], None],
        on_lost: Callable[[], None],
        on_taken_over: Callable[[], None],
        on_refused: Callable[[str], bool],
        on_last: Callable[[bool], None],
        on_message: Callable[[bytes, bytes, bool], None],
    ) -> None:
        self.on_change = on_change
        self.on_linked = on_linked
        self.on_lost = on_lost
        self.on_taken_over = on_taken_over  # as a FAILOVER has asked the other server
        self.on_refused = on_refused
        self.on_last = on_last
        self.on_message = on_message
        self.on_confirmed: Callable[[int], None] = lambda seq: None  # a member of a shard sets it
