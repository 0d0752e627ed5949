from collections.abc import Callable
from typing import TypeVar

from millstream.storage.keyspace.keyspace import Keyspace

Apply = Callable[[Keyspace, int, list[bytes]], None]
A = TypeVar("A", bound=Apply)

CODES: dict[bytes, int]
APPLY: dict[bytes, Apply]
Keys = tuple[tuple[int, int], ...] | None
KEYS: dict[bytes, Keys]
EVERY_WORD: None

ID_WORD_BYTES: int
EFFECT_BYTES: int

class EffectError(Exception):
    offset: int
    message: str
    def __init__(self, offset: int, message: str) -> None: ...

def effect(name: bytes, *, wakes_readers: bool = False, keys: Keys = ...) -> Callable[[A], A]: ...
def keys_of(db: int, words: list[bytes]) -> list[tuple[int, bytes]]: ...

class Effects:
    enabled: bool
    count: int
    room: int
    make_room: Callable[[int], int]
    def require_room(self, size_bytes: int) -> None: ...
    def forget_room(self) -> None: ...
    def __init__(self, enabled: bool = True, make_room: Callable[[int], int] = ...) -> None: ...
    def record(self, db: int, *words: bytes | int) -> None: ...
    def take_payload(self) -> bytes | None: ...
    def __len__(self) -> int: ...

def apply_effects(keyspace: Keyspace, payload: bytes) -> int: ...
def changes_only_groups(payload: bytes) -> bool: ...
def split_effects(payload: bytes) -> list[tuple[int, list[bytes], bytes]]: ...
