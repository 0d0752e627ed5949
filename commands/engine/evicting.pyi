from millstream.commands.runtime.context import Context
from millstream.storage.streams.stream import Stream

def evict_to(
    ctx: Context, key: bytes, stream: Stream, boundary: tuple[int, int] | str | None, counts: bool
) -> int: ...
def drop_oldest_block(ctx: Context, key: bytes) -> int: ...
