from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context

def xdel(ctx: Context, args: Args) -> int: ...
