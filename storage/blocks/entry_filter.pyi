OPERATORS: dict[bytes, int]

def is_bound(word: bytes, /) -> bool: ...

class EntryFilter:
    words: list[bytes]
    count: int
    def __init__(self, words: list[bytes]) -> None: ...
