from millstream.commands.runtime.context import Context
from millstream.storage.streams.stream import Stream

def check_promise(
    ctx: Context, stream: Stream, ms: int, seq: int, name: str, dotted: bool
) -> None: ...
