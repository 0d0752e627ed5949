from millstream.storage.blocks.block import Block

def open_bytes() -> int: ...

class OpenBlock:
    count: int
    live: int
    def freeze(self) -> Block: ...
