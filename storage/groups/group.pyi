from millstream.storage.groups.pending_list import PendingList

class Group:
    name: bytes
    pending: PendingList
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
    def __init__(
        self, name: bytes, offset_ms: int = 0, offset_seq: int = 0, now_ms: int = 0
    ) -> None: ...
    def is_over(self, now_ms: int) -> bool: ...
    @property
    def memory_bytes(self) -> int: ...
