from typing import Any

from millstream.commands.arguments import Args
from millstream.commands.context import Context
from millstream.commands.replies import BlockedRead

class ConsumerRead(BlockedRead): ...

def xreadgroup(ctx: Context, args: Args) -> Any: ...
