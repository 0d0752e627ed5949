from millstream.storage.streams.stream import Stream

def oldest_block_ms(stream: Stream) -> int | None: ...
def bytes_of(stream: Stream) -> int: ...
def unheld(
    stream: Stream,
    keep: int | None = None,
    minid: tuple[int, int] | None = None,
    limit: int = 0,
    steps_max: int = 0,
) -> tuple[list[tuple[int, int]], int]: ...
