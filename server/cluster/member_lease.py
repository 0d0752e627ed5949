"""The lease of a node in the store, and until when it certainly lasts.

The store counts from the moment at which it carried out a request, so the time here counts from the
one at which the request was sent, and ends a second earlier: clocks may run at different rates.
"""

from __future__ import annotations

import logging

from millstream.server.cluster.member_actions import GetLease, KeepLease

log = logging.getLogger("millstream.cluster")

EARLIER_MS = 1000
_KEEPS = 4  # keepalives in the time of a lease
_AGAIN_MS = 1000  # after a call whose outcome is unknown


class MemberLease:
    """`id` is 0 without a lease. All times are those of the steady clock."""

    def __init__(self, ttl_s: int) -> None:
        self.id = 0
        self.until_ms = 0
        self._wanted_s = ttl_s
        self._ttl_s = float(ttl_s)
        self._due_ms = 0
        self._is_asking = False

    def is_valid(self, now_ms: int) -> bool:
        return self.id != 0 and now_ms < self.until_ms

    def left_ms(self, now_ms: int) -> int:
        """The time for which the lease certainly lasts."""
        return max(0, self.until_ms - now_ms) if self.id else 0

    def look(self, now_ms: int) -> list[GetLease | KeepLease]:
        """The request to the store that is due; at most one, until its outcome is here."""
        if self._is_asking or now_ms < self._due_ms:
            return []
        self._is_asking = True
        return [KeepLease(self.id) if self.id else GetLease(self._wanted_s)]

    def granted(self, lease: int, ttl_s: float, sent_ms: int) -> None:
        """The store has granted a lease, perhaps a longer one than wanted."""
        if ttl_s > self._wanted_s and ttl_s != self._ttl_s:
            log.warning(
                "etcd grants leases of %g seconds at least: cluster-lease %d is too short for it",
                ttl_s, self._wanted_s,
            )  # fmt: skip
        self.id = lease
        self._begin(ttl_s, sent_ms)

    def kept(self, ttl_s: float | None, sent_ms: int) -> None:
        """The lease lasts for this time since the request; None: it has ended."""
        if ttl_s is None:
            self.end()
        else:
            self._begin(ttl_s, sent_ms)

    def failed(self, now_ms: int) -> None:
        """The store has not answered."""
        self._is_asking = False
        self._due_ms = now_ms + _AGAIN_MS

    def end(self) -> None:
        """The lease has ended: another one is needed."""
        self.id = self.until_ms = self._due_ms = 0
        self._is_asking = False

    def _begin(self, ttl_s: float, sent_ms: int) -> None:
        self._is_asking = False
        self._ttl_s = ttl_s
        ttl_ms = int(ttl_s * 1000)
        self.until_ms = max(self.until_ms, sent_ms + ttl_ms - EARLIER_MS)
        self._due_ms = sent_ms + ttl_ms // _KEEPS
