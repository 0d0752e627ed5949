from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context

def xtrim(ctx: Context, args: Args) -> int: ...
