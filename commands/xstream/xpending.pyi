from typing import Any

from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context

def xpending(ctx: Context, args: Args) -> Any: ...
