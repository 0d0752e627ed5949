from millstream.storage.groups.pending_list import PendingList

class GroupRules:
    ttl_ms: int
    last_used_ms: int

class Group:
    name: bytes
    rules: GroupRules | None
    pending: PendingList
    offset_ms: int
    offset_seq: int
    gap_floor_ms: int
    gap_floor_seq: int
    entries_read: int
    scheduled_ms: int
    def __init__(self, name: bytes, offset_ms: int = 0, offset_seq: int = 0) -> None: ...
    def is_over(self, now_ms: int) -> bool: ...
    @property
    def ttl_ms(self) -> int: ...
    def set_ttl(self, ttl_ms: int, now_ms: int) -> None: ...
    def restart_ttl(self, now_ms: int) -> None: ...
    @property
    def memory_bytes(self) -> int: ...
