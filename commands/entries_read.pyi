from millstream.storage.group import Group
from millstream.storage.stream import Stream

def group_lag(stream: Stream, group: Group) -> int | None: ...
