from collections.abc import Callable
from typing import Any

class Statistics:
    def __init__(self, server: Any, clock: Callable[[], int] | None) -> None: ...
