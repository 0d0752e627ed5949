from typing import Any

from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context

def xcfgset(ctx: Context, args: Args) -> Any: ...
def xidmprecord(ctx: Context, args: Args) -> Any: ...
