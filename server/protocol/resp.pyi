from typing import Any

class Limits:
    bulk_bytes: int
    query_bytes: int
    def __init__(self, bulk_bytes: int = ..., query_bytes: int = ...) -> None: ...

def encode_reply(reply: Any, resp: int = 2) -> bytes: ...
