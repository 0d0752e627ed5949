from typing import Any

from millstream.commands.arguments import Args
from millstream.commands.context import Context

def tappendonce(ctx: Context, args: Args) -> Any: ...
