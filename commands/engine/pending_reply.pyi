from millstream.commands.runtime.replies import Encodable, Sliced
from millstream.storage.streams.group import Consumer, Group

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
