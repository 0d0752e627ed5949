from collections.abc import Callable
from typing import Any

from millstream.storage.groups.group import Group
from millstream.storage.keyspace.dead_letter_totals import DeadLetterTotals
from millstream.storage.keyspace.key_slots import KeySlots
from millstream.storage.keyspace.retention_schedule import RetentionSchedule
from millstream.storage.reservations.held import Held
from millstream.storage.streams.schedule import Schedule
from millstream.storage.streams.stream import RetentionPolicy, Stream

def patched(old: bytes, offset: int, part: bytes) -> bytes: ...

class DatabaseCore:
    index: int
    keyspace: KeyspaceCore
    waiting: dict[bytes, Any]
    table: dict[bytes, Any]
    slots: KeySlots
    expiries: dict[bytes, int]
    used_s: dict[bytes, int]
    reservations: int
    scheduled: int
    append_buffers: dict[bytes, bytearray]
    watched: dict[bytes, Any]
    def __init__(self, keyspace: KeyspaceCore, index: int) -> None: ...
    def stream(self, key: bytes) -> Stream | None: ...
    def writable_stream(self, key: bytes) -> Stream | None: ...
    def get(self, key: bytes) -> bytes | Stream | None: ...
    def read(self, key: bytes) -> bytes | Stream | None: ...
    def use(self, key: bytes) -> bytes | Stream | None: ...
    def note_use(self, key: bytes, value: bytes | Stream) -> int: ...
    def forget_cached(self) -> int: ...
    def has_expired(self, key: bytes) -> bool: ...
    def replace_string(self, key: bytes, value: bytes, keep_expiry: bool) -> bool: ...
    def extend_expiry(self, key: bytes, at_ms: int) -> bool: ...
    def note_lease_moment(self, key: bytes, held: Held, moment_ms: int) -> int: ...
    def mark_ready(self, key: bytes) -> int: ...

class KeyspaceCore:
    clustered: bool
    databases: list[Any]
    dirty: int
    now_ms: int
    steady_ms: int
    now_s: int
    newest_steady_ms: int
    node_entries: int
    node_bytes: int
    idmp_duration_s: int
    idmp_maxsize: int
    producers_max: int
    held_max_bytes: int
    reservations_max: int
    writers_max: int
    scheduled_max: int
    scheduled_max_bytes: int
    promised_ms: int
    recorded_promise_ms: int
    has_ordering: bool
    has_rules: bool
    reservations_expired: int
    scheduled_fired: int
    unfired_log_ms: int
    redelivered_due: int
    redelivered_claimed: int
    missed_entries: int
    dead_letters: DeadLetterTotals
    lost_entries: int
    settling: list[tuple[int, bytes, RetentionPolicy]]
    incarnation: int
    ready: list[tuple[int, bytes]]
    timer_requests: list[tuple[int, int, bytes, bytes | None]]
    deferred: list[tuple[int, bytes, bytes]]
    retention_schedule: RetentionSchedule
    firing_schedule: RetentionSchedule
    capture: Any  # a Capture, a SlotCapture, SeveralCaptures, or None
    walks: list[Any]  # of KeyIterator
    capture_number: int
    expiring: bool
    may_delete: bool
    touching: bool
    active_expiry: bool
    expiry_noted: bool
    on_expired: Callable[[int, bytes], None] | None
    expired_count: int
    hits: int
    misses: int
    # Keyspace has this.
    hidden_slots: frozenset[int]
    def __init__(
        self,
        node_entries: int,
        node_bytes: int,
        retention_schedule: RetentionSchedule,
        firing_schedule: RetentionSchedule,
    ) -> None: ...
    def set_time(self, now_ms: int, steady_ms: int | None = None) -> None: ...
    def open_reservations(self) -> int: ...
    def scheduled_entries(self) -> int: ...
    def note_firing(self, db_index: int, key: bytes, schedule: Schedule) -> int: ...
    def is_walked(self) -> bool: ...
    def databases_with_keys(self) -> list[Any]: ...  # of Database
    def note_promise(self, promised_ms: int) -> None: ...
    def note_steady(self, steady_ms: int) -> int: ...
    def next_incarnation(self, now_ms: int) -> int: ...
    def trim_soon(self, db_index: int, key: bytes, stream: Stream) -> None: ...
    def schedule(self, db_index: int, key: bytes, group: Group) -> int: ...
