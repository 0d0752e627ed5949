from millstream.commands.access.users import User
from millstream.commands.table.registry import Command

class Demand:
    name: str
    number: int
    place: int
    def __init__(self, command: Command, option: bytes | None = None) -> None: ...

class Permission:
    user: User
    def __init__(self, user: User) -> None: ...
    def allows(self, command: Command, words: list[bytes]) -> bool: ...

def glob(pattern: bytes, text: bytes) -> bool: ...
