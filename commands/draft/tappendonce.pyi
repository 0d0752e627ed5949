from typing import Any

from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context

def tappendonce(ctx: Context, args: Args) -> Any: ...
def tappendmany(ctx: Context, args: Args) -> Any: ...
