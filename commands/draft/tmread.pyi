from typing import Any

from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import BlockedRead

class FollowRead(BlockedRead): ...

def tmread(ctx: Context, args: Args) -> Any: ...
