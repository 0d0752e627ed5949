from millstream.commands.runtime.context import Context
from millstream.storage.groups.group import Group

class Retry:
    def __init__(self, retry_ms: int, expire_ms: int) -> None: ...

def drop_gone(ctx: Context, key: bytes, group: Group, gone: list[tuple[int, int]]) -> int: ...
