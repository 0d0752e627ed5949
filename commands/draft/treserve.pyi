from typing import Any

from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context

def treserve(ctx: Context, args: Args) -> Any: ...
def tcomplete(ctx: Context, args: Args) -> Any: ...
