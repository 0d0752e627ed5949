from millstream.commands.arguments import Args
from millstream.commands.context import Context

def xtrim(ctx: Context, args: Args) -> int: ...
