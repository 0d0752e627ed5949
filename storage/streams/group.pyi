from typing import Any

PENDING_SIZE: int
CHUNK_RECORDS: int

Row = tuple[int, int, bytes, int, int, int, int | None, int | None]

class SharedPending:
    records: int
    def free_step(self, most: int) -> bool: ...
    def __bytes__(self) -> bytes: ...

class Consumer:
    name: bytes
    index: int
    seen_ms: int
    active_ms: int
    pending: int

class Group:
    name: bytes
    offset_ms: int
    offset_seq: int
    gap_floor_ms: int
    gap_floor_seq: int
    entries_read: int
    ttl_ms: int
    last_used_ms: int
    scheduled_ms: int
    blocked_clients: int
    retry_waiters: int
    claim_idle_ms: int
    pending_count: int
    unowned_count: int
    work_counter: int
    consumers: dict[bytes, Consumer]
    def __init__(
        self, name: bytes, offset_ms: int = 0, offset_seq: int = 0, now_ms: int = 0
    ) -> None: ...
    def policy(self, retry_ms: int, expire_ms: int) -> int: ...
    def consumer(self, name: bytes) -> Consumer | None: ...
    def make_consumer(self, name: bytes, now_ms: int) -> Consumer: ...
    def delete_consumer(self, name: bytes) -> int: ...
    def acknowledge(self, ms: int, seq: int) -> bool: ...
    def claim(
        self, ms: int, seq: int, consumer: Consumer, delivery_ms: int, count: bytes
    ) -> int: ...
    def release(self, ms: int, seq: int, count: bytes, now_ms: int) -> int: ...
    def redeliver_id(
        self, ms: int, seq: int, now_ms: int, retry: tuple[int, int] | None = None
    ) -> None: ...
    def take_expired(self, now_ms: int, limit: int) -> list[tuple[int, int]]: ...
    def pending(
        self,
        start_ms: int = 0,
        start_seq: int = 0,
        end: tuple[int, int] | None = None,
        limit: int | None = None,
        consumer: bytes | None = None,
    ) -> list[Row]: ...
    def idle(self, now_ms: int, min_idle_ms: int, limit: int) -> list[tuple[int, int]]: ...
    def due(self, now_ms: int, limit: int, with_zero: bool = True) -> list[tuple[int, int]]: ...
    def is_over(self, now_ms: int) -> bool: ...
    @property
    def memory_bytes(self) -> int: ...
    def dump(self) -> dict[str, Any]: ...
    def share(self) -> dict[str, Any]: ...
    @staticmethod
    def load(meta: dict[str, Any], now_ms: int) -> Group: ...
    def check(self) -> None: ...
