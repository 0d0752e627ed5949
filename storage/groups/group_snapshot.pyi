from collections.abc import Generator
from typing import Any

from millstream.storage.groups.group import Group

PENDING_SIZE: int

def dump_group(group: Group) -> dict[str, Any]: ...
def load_group(meta: dict[str, Any], now_ms: int) -> Group: ...
def load_group_in_steps(meta: dict[str, Any], now_ms: int) -> Generator[None, None, Group]: ...
