from typing import Any

from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import BlockedRead

class ConsumerRead(BlockedRead): ...

def xack(ctx: Context, args: Args) -> int: ...
def xreadgroup(ctx: Context, args: Args) -> Any: ...
