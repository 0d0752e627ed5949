from typing import Any

from millstream.storage.groups.pending_list import PendingList

UNTIL_RESUMED: int
LATER_RULES: tuple[str, ...]

class GroupRules:
    ttl_ms: int
    last_used_ms: int
    timeout_ms: int
    backoff_ms: tuple[int, ...] | None
    max_deliver: int
    dead_letter: bytes | None
    copy_at_ms: int
    dead_letters: dict[bytes, int] | None
    max_in_flight: int
    consumer_ttl_ms: int
    consumer_check_ms: int
    consumer_looked: int
    paused_until_ms: int
    picking: Any

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
    def set_rules(self, **rules: Any) -> None: ...
    @property
    def dead_letters(self) -> dict[bytes, int]: ...
    def count_dead_letters(self, reason: bytes, count: int) -> None: ...
    def own_rules(self) -> GroupRules: ...
    @property
    def timeout_ms(self) -> int: ...
    @property
    def backoff_ms(self) -> tuple[int, ...]: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def is_ordered(self) -> bool: ...
    @property
    def parked(self) -> int: ...
    def has_parked(self, ms: int, seq: int) -> bool: ...
    @property
    def recorded_place(self) -> dict[str, Any]: ...
    def restart_ttl(self, now_ms: int) -> None: ...
    @property
    def memory_bytes(self) -> int: ...

def copied_rules(group: Group) -> dict[str, Any]: ...
