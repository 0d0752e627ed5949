from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.reservations.held import Held
from millstream.storage.streams.idempotence import Window
from millstream.storage.streams.stream import Stream

EVICTIDS: bytes
XDEL: bytes
XDELRANGE: bytes
SETID: bytes
IDMPSET: bytes
IDMP: bytes
IDMPREPEAT: bytes
GROUPSETID: bytes
CONSUMERDROP: bytes
DEADLINE: bytes
WAIT: bytes
GROUPRULES: bytes
RULE_NUMBERS: dict[bytes, str]
GROUPTTL: bytes
RELEASE: bytes

def id_of(text: bytes) -> tuple[int, int]: ...
def stream_at(keyspace: Keyspace, db: int, key: bytes) -> Stream: ...
def held_at(keyspace: Keyspace, db: int, key: bytes) -> Held: ...
def set_last_id(
    keyspace: Keyspace,
    stream: Stream,
    last: tuple[int, int],
    added: int,
    deleted: tuple[int, int],
) -> None: ...
def window_of(stream: Stream) -> Window: ...
