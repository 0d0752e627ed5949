from millstream.commands.runtime.replies import Encodable, Sliced
from millstream.storage.groups.consumers import Consumer
from millstream.storage.groups.group import Group
from millstream.storage.groups.shared_groups import SharedGroups, SharedMembers
from millstream.storage.streams.stream import Stream

class PendingRange(Encodable): ...
class SlicedPending(Sliced): ...

def pending_range(
    group: Group,
    start: tuple[int, int],
    end: tuple[int, int],
    limit: int,
    min_idle_ms: int,
    now_ms: int,
    owner: Consumer | None = None,
) -> PendingRange: ...
def shown_count(count: int) -> int: ...
def group_figures(
    group: Group, stream: Stream, ends: StreamEnds
) -> tuple[int, int, int, int, int, int, int]: ...
def entries_up_to(stream: Stream, ms: int, seq: int) -> int: ...
def has_few_consumers(group: Group) -> bool: ...

class StreamEnds:
    def __init__(self, stream: Stream) -> None: ...

class ConsumerRows(Encodable):
    def __init__(
        self, members: SharedMembers, now_ms: int, numbers: list[int] | None = None
    ) -> None: ...

class FewConsumers(Encodable):
    def __init__(self, group: Group, now_ms: int) -> None: ...

class OwnerRows(Encodable):
    def __init__(self, members: SharedMembers, numbers: list[int] | None = None) -> None: ...

class GroupRows(Encodable):
    def __init__(
        self, groups: SharedGroups, ends: StreamEnds, numbers: list[int] | None = None
    ) -> None: ...

class GroupProgress(Encodable):
    def __init__(self, groups: SharedGroups, ends: StreamEnds, number: int) -> None: ...

class PendingSummary(Encodable):
    def __init__(self, group: Group) -> None: ...

class FewGroups(Encodable):
    def __init__(self, stream: Stream, now_ms: int) -> None: ...

def few_groups(stream: Stream, now_ms: int) -> FewGroups | None: ...

class StreamFields(Encodable):
    def __init__(
        self, stream: Stream, now_ms: int, counted_nodes: int, idempotence: bytes, is_full: bool
    ) -> None: ...
