from collections.abc import Sequence

from millstream.commands.runtime.context import Context
from millstream.storage.groups.group import Group
from millstream.storage.streams.stream import Stream

Id = tuple[int, int]

class GiveBack:
    def __init__(
        self,
        mode: bytes,
        delay_ms: int | None = None,
        retry_count: int | None = None,
        text: bytes = b"",
    ) -> None: ...
    def from_any_owner(
        self,
        ctx: Context,
        key: bytes,
        stream: Stream,
        group: Group,
        ids: Sequence[Id],
        new: set[Id],
    ) -> int: ...
    def from_holder(
        self,
        ctx: Context,
        key: bytes,
        stream: Stream,
        group: Group,
        holder: bytes,
        ids: list[Id],
    ) -> None: ...

def return_ended(
    ctx: Context, key: bytes, stream: Stream, group: Group, ids: Sequence[Id]
) -> None: ...
def held_ids(group: Group, holder: bytes) -> list[Id]: ...
def extend_held(
    ctx: Context, key: bytes, group: Group, holder: bytes, span_ms: int, ids: Sequence[Id]
) -> list[int]: ...
def check_managed(group: Group) -> int: ...
