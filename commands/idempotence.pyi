from typing import Any

from millstream.commands.arguments import Args
from millstream.commands.context import Context

def xcfgset(ctx: Context, args: Args) -> Any: ...
def xidmprecord(ctx: Context, args: Args) -> Any: ...
