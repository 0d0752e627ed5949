CONDITIONS_MAX: int
IN_VALUES_MAX: int
COUNTED: int
OPERANDS: dict[bytes, int]

def is_bound(word: bytes, /) -> bool: ...

class EntryFilter:
    words: list[bytes]
    count: int
    def __init__(self, words: list[bytes]) -> None: ...
