from collections.abc import Iterable, Sequence
from typing import Any

from millstream.storage.blocks.block import Block
from millstream.storage.groups.group import Group
from millstream.storage.streams.stream import Stream

def dump_stream(stream: Stream, shared: bool = False) -> tuple[dict[str, Any], Sequence[Block]]: ...
def stream_has_rules(stream: Stream) -> bool: ...
def load_stream(
    meta: dict[str, Any],
    blocks: Sequence[Block],
    now_ms: int,
    groups: Iterable[Group] | None = None,
) -> Stream: ...
def load_rest(stream: Stream, meta: dict[str, Any]) -> None: ...
def copy_stream(stream: Stream, incarnation: int, now_ms: int) -> Stream: ...
