"""The words with which the two ends of a link speak to each other."""

from __future__ import annotations

from collections.abc import Sequence

# A replica knows effects as RESP, and those with codes. Earlier versions know only the first, so
# they can be primaries of this server but not its replicas.
KNOWS_CODES = b"millstream-2"
CAPABILITIES = b"millstream-1", KNOWS_CODES
# Capabilities: the replica wants the IDs of the servers above it; it knows SHARD_MESSAGE records.
KNOWS_UPSTREAM, KNOWS_SHARDS = b"upstream", b"shard-messages"
TAKEOVER, TAKEOVER_FORCED = (b"FAILOVER",), (b"FAILOVER", b"FORCE")  # options of PSYNC
LACKS_FRAMES = "lacks"  # after the address of a promoted server that lacks frames of the sender
# The primary cannot serve a replica at present; it will be asked again soon.
RETRY = "TRYAGAIN"  # during a failover also: the server that refuses is the primary already


def encode_request(words: Sequence[bytes]) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        parts.append(b"$%d\r\n%b\r\n" % (len(word), word))
    return b"".join(parts)
