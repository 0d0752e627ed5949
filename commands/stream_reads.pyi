from typing import Any

from millstream.commands.arguments import Args
from millstream.commands.context import Context
from millstream.commands.replies import BlockedRead

class StreamsRead(BlockedRead): ...

def stream_key_positions(words: list[bytes]) -> list[int]: ...
def xread(ctx: Context, args: Args) -> Any: ...
