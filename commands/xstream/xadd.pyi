from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context

def append_of_source(ctx: Context, args: Args) -> bool: ...
