from typing import Any

from millstream.commands.runtime.context import Context

class Admission:
    password_required: bool
    has_restricted: bool
    stale: str | None
    memory_full: bool
    def __init__(self, server: Any, context: Context) -> None: ...
    @property
    def out_of_memory(self) -> str | None: ...
