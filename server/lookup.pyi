class CallStat:
    calls: int
    usec: int
    rejected_calls: int
    failed_calls: int

class Row:
    name: str

class Table:
    def stats(self) -> dict[str, CallStat]: ...
    def reset(self) -> None: ...
    def all_rows(self) -> list[Row]: ...
