"""The store that the nodes of a cluster share: named values, transactions, leases, and a watch.

etcd is the store (`etcd_store`); tests also have a model of it with a clock of its own. A name is
what follows the prefix of the cluster in etcd: `map`, `shard/s1`. Nothing here decides anything:
the nodes do, with transactions that compare versions.

Each call ends within a few seconds. `Unreachable` means that the outcome is unknown: a transaction
may have been carried out, and may even be carried out later. Its compares make it fail
then, so a transaction whose order matters has some.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import NamedTuple, Protocol


class Unreachable(Exception):
    """No endpoint has answered in time, or not clearly: the call may have had its effect."""


class Compacted(Exception):
    """The changes that a watch asked for are no longer there: read everything instead."""


class Refused(Exception):
    """The store has answered that it does not do this: nothing has changed."""


class LeaseEnded(Refused):
    """A change names a lease that has ended."""


def reason_of(problem: Exception) -> str:
    """A sentence that says why the store cannot be used."""
    is_sentence = isinstance(problem, Unreachable | Refused)
    return str(problem) if is_sentence else f"etcd cannot be used: {problem}"


class Value(NamedTuple):
    """A value; the revision of the transaction that wrote it; the lease with which it ends, or
    0."""

    data: bytes
    version: int
    lease: int


class Contents(NamedTuple):
    """All values of the cluster by name, as they were at one revision."""

    revision: int
    values: Mapping[str, Value]


class Changes(NamedTuple):
    """The values that changed up to a revision; None for one that was removed. All changes of one
    transaction come together."""

    revision: int
    values: Mapping[str, Value | None]


class Compare(NamedTuple):
    """A transaction requires that a value still has this version; 0: that it does not exist."""

    name: str
    version: int


class Change(NamedTuple):
    """A value that a transaction writes; None removes it. With a lease, it is removed when the
    lease ends."""

    name: str
    data: bytes | None
    lease: int = 0


class Commit(NamedTuple):
    """The outcome of a transaction: False if a compare did not hold, and then nothing was written.
    If it was carried out, the revision is the version of what it wrote."""

    done: bool
    revision: int


class Grant(NamedTuple):
    """A new lease. Its time to live is what the store grants, which may be longer than wanted."""

    id: int
    ttl_s: float


class Store(Protocol):
    """All calls raise Unreachable or Refused, unless stated otherwise."""

    async def read(self) -> Contents:
        """All values; no earlier than any transaction whose outcome is known to any node."""

    async def commit(self, compares: Sequence[Compare], changes: Sequence[Change]) -> Commit:
        """Write all changes if all compares hold. Each name may be changed once. LeaseEnded if one
        of the leases has ended."""

    async def grant(self, ttl_s: int) -> Grant: ...

    async def keep_alive(self, lease: int) -> float | None:
        """Let a lease begin again; its time to live in seconds, which counts from the call. None if
        the lease has ended."""

    async def revoke(self, lease: int) -> None:
        """End a lease now, with its values. It may have ended before."""

    def watch(self, revision: int) -> AsyncGenerator[Changes, None]:
        """All changes after a revision, as they come. Ends with Unreachable, Compacted or Refused.

        It may stay silent though there are changes, and sees nothing of a store that was restored
        from an old copy. So a reader of it also reads everything from time to time."""
