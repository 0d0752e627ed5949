from millstream.storage.groups.consumers import Consumer, Members

Row = tuple[int, int, bytes, int, int, int, int | None, int | None]

class PendingList(Members):
    count: int
    unowned_count: int
    waiting_count: int
    work_counter: int
    def retry_number(self, retry_ms: int, expire_ms: int) -> int: ...
    def acknowledge(self, ms: int, seq: int) -> bool: ...
    def claim(
        self,
        ms: int,
        seq: int,
        consumer: Consumer,
        delivery_ms: int,
        count: bytes,
        retry_number: int,
    ) -> int: ...
    def release(self, ms: int, seq: int, count: bytes, now_ms: int) -> int: ...
    def has(self, ms: int, seq: int) -> bool: ...
    def is_waiting(self, ms: int, seq: int) -> bool: ...
    def ends(self) -> tuple[tuple[int, int], tuple[int, int]] | None: ...
    def rows(
        self,
        start_ms: int = 0,
        start_seq: int = 0,
        end: tuple[int, int] | None = None,
        limit: int | None = None,
        consumer: bytes | None = None,
    ) -> list[Row]: ...
