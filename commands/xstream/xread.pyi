from typing import Any

from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import BlockedRead

class StreamsRead(BlockedRead): ...

def xread(ctx: Context, args: Args) -> Any: ...
