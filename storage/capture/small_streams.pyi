from millstream.storage.capture.captured_keys import CapturedKeys
from millstream.storage.streams.stream import Stream

class SmallStreams:
    keys: int
    count: int
    entries: int
    def __init__(self, full_bytes: int) -> None: ...
    def add(self, db: int, key: bytes, stream: Stream, expires_ms: int | None, /) -> bool: ...
    def add_slots(
        self,
        database: CapturedKeys,
        start: int,
        mark: int,
        most: int,
        others: list[bytes],
        /,
    ) -> tuple[int, int]: ...
    @property
    def is_full(self) -> bool: ...
    def take(self) -> tuple[bytes, bytes]: ...
    def free_step(self, most: int) -> bool: ...
