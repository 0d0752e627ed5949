from typing import Any

from millstream.commands.runtime.context import Context

class Admission:
    password_required: bool
    has_restricted: bool
    stale: str | None
    def __init__(self, server: Any, context: Context) -> None: ...
    @property
    def out_of_memory(self) -> str | None: ...
    def set_memory(self, *, full: bool, lacking: bool) -> None: ...
