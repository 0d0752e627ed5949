from collections.abc import Iterable, Sequence
from typing import Protocol

from millstream.commands.runtime.context import Session
from millstream.commands.table.keyspecs import KeySpec
from millstream.server.execution.slot_parking import SlotParking

CROSSSLOT: str
DOWN: str
DOWN_TO_WRITES: str

def positions_of(key_specs: Sequence[KeySpec], words: list[bytes]) -> list[int]: ...

class Refusals(Protocol):
    def owns(self, slot: int) -> bool: ...
    def foreign_slot(self, session: Session, slot: int) -> str: ...
    def unserved_slot(self, slot: int) -> str | None: ...

class SlotCheck:
    moved: int
    crossed: int
    unserved: int
    parking: SlotParking | None
    is_down: bool
    def __init__(self, node: Refusals) -> None: ...
    def own(self, slots: Iterable[int]) -> None: ...
    def set_down(self, is_down: bool, *, allows_reads: bool) -> None: ...
    def park_in(self, parking: SlotParking | None) -> None: ...
