from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.errors import CommandError
from millstream.storage.groups.group import Group
from millstream.storage.streams.stream import Stream

def no_group(key: bytes, name: bytes) -> CommandError: ...
def named_group(ctx: Context, args: Args) -> tuple[bytes, Stream, Group]: ...
