from millstream.commands.runtime.arguments import Args

DELREF: int
ACKED: int

def take_references(args: Args) -> int: ...
