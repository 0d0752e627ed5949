class Consumer:
    name: bytes
    index: int
    seen_ms: int
    active_ms: int
    pending: int

class Members:
    claim_idle_ms: int
    consumers: dict[bytes, Consumer]
    blocked_clients: int
    retry_waiters: int
    def consumer(self, name: bytes) -> Consumer | None: ...
    def make_consumer(self, name: bytes, now_ms: int) -> Consumer: ...
