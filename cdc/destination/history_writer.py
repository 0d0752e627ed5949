"""Changes of a history: each change of a row ends its version and begins a new one.

All changes that a source transaction makes to a key are one step. Steps are collected in memory and
written together. A transaction with more keys than fit is written in parts: a temporary table
remembers what the earlier parts did to a key, and a later part takes that back before it writes the
step again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millstream.cdc.destination.connections import TargetSession
from millstream.cdc.destination.fold import Key, RowKeys
from millstream.cdc.destination.route import Route
from millstream.cdc.destination.version_store import VersionStore
from millstream.cdc.destination.versions import Step, Values, time_us, together, versions_of
from millstream.cdc.protocol.pgoutput import UNCHANGED, Value
from millstream.cdc.streams.changes import DELETE, INSERT, START, TRUNCATE, Change

STEPS_MAX = 20_000
BYTES_MAX = 64 << 20


class HistoryWriter:
    """Applies changes to one history. Call `flush` at the end of the range: only then are all
    changes at the destination."""

    def __init__(
        self,
        session: TargetSession,
        to: Route,
        steps_max: int = STEPS_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        """Steps are collected up to `steps_max`, and up to `bytes_max` in their values."""
        self._store = VersionStore(session, to)
        self._route = to
        self._keys = RowKeys(to.key)
        self._steps_max = steps_max
        self._bytes_max = bytes_max
        self._steps: dict[Key, list[Step]] = {}
        self._count = 0
        self._size_bytes = 0
        self._lsn = 0
        self._at = b""
        self._at_us = 0
        self._is_truncated = False
        self._is_spilled = False

    def apply(self, changes: Sequence[Change]) -> None:
        """Take changes, in the order in which the source made them."""
        for change in changes:
            if change.op == START:
                continue
            if change.lsn != self._lsn:
                self._end_transaction()
                self._lsn = change.lsn
            if change.at != self._at:
                self._at, self._at_us = change.at, time_us(change.at.decode())
            if change.op == TRUNCATE:
                self._truncate()
            else:
                self._change(change)
            if self._count >= self._steps_max or self._size_bytes >= self._bytes_max:
                self._write_complete()

    def flush(self) -> None:
        """Write everything; the last transaction is complete."""
        self._end_transaction()
        self._write(self._take(None))

    # ------------------------------------------------------------ steps

    def _change(self, change: Change) -> None:
        if change.op == DELETE:
            self._add(self._keys.deleted(change), None)
            return
        old_key = None if change.op == INSERT else self._keys.old(change)
        key = self._keys.new(change)
        values = {
            name: value
            for name, value in zip(change.columns, change.row, strict=True)
            if value is not UNCHANGED
        }
        if old_key is None or old_key == key:
            self._add(key, values, whole=change.op == INSERT)
            return
        missing = [name for name in self._route.columns if name not in values]
        before = self._present(old_key, missing) if missing else {}
        self._add(old_key, None)
        self._add(key, {**before, **values}, whole=True)

    @property
    def size_bytes(self) -> int:
        """The values of the steps that have not been written. A value that a later step of the same
        transaction replaced may count twice."""
        return self._size_bytes

    def _add(self, key: Key, values: Values | None, whole: bool = False) -> None:
        step = Step(self._lsn, self._at_us, values, whole)
        self._size_bytes += _size(step)
        steps = self._steps.setdefault(key, [])
        if steps and steps[-1].lsn == self._lsn:
            steps[-1] = together(steps[-1], step)
        else:
            steps.append(step)
            self._count += 1

    def _present(self, key: Key, names: list[str]) -> dict[str, Value]:
        """Current values of a key: from the steps that are not written yet, and from the target."""
        found: dict[str, Value] = {}
        for step in reversed(self._steps.get(key, [])):
            if step.values is None:
                return found
            found = {**{n: v for n, v in step.values.items() if n in names}, **found}
            if step.whole:
                return found
        missing = [name for name in names if name not in found]
        return {**self._store.open_values(key, missing), **found} if missing else found

    # ------------------------------------------------------------ transactions

    def _truncate(self) -> None:
        self._write(self._take(self._lsn))
        if self._is_spilled:
            self._store.take_back_all()
        self._is_truncated = True
        for key in self._steps:
            self._steps[key] = [Step(self._lsn, self._at_us, None)]

    def _end_transaction(self) -> None:
        if not self._is_truncated and not self._is_spilled:
            return
        steps = self._take(None)  # all of them are this transaction's
        self._write(steps)
        if self._is_truncated:
            kept = [key for key, own in steps.items() if own[-1].values is not None]
            self._store.end_all(self._at_us, kept)
        if self._is_spilled:
            self._store.forget()
        self._is_truncated = self._is_spilled = False

    def _write_complete(self) -> None:
        complete = self._take(self._lsn)
        if complete:
            self._write(complete)
        if self._count >= self._steps_max // 2 or self._size_bytes >= self._bytes_max // 2:
            self._is_spilled = True
            self._write(self._take(None), is_partial=True)

    def _take(self, before_lsn: int | None) -> dict[Key, list[Step]]:
        """The steps of the transactions before this one, which are then no longer waiting."""
        if before_lsn is None:
            taken, self._steps, self._count, self._size_bytes = self._steps, {}, 0, 0
            return taken
        taken, rest = {}, {}
        for key, steps in self._steps.items():
            if steps[-1].lsn != before_lsn:
                taken[key] = steps
                continue
            rest[key] = steps[-1:]
            if len(steps) > 1:
                taken[key] = steps[:-1]
        self._steps, self._count = rest, len(rest)
        self._size_bytes = sum(_size(own[0]) for own in rest.values())
        return taken

    def _write(self, steps: dict[Key, list[Step]], is_partial: bool = False) -> None:
        if not steps:
            return
        if self._is_spilled:
            steps = self._with_earlier_parts(steps)
        last = self._store.last(list(steps))
        made = {key: versions_of(own, last.get(key)) for key, own in steps.items()}
        self._store.write(made, last, is_partial)

    def _with_earlier_parts(self, steps: dict[Key, list[Step]]) -> dict[Key, list[Step]]:
        """Take back what earlier parts of the transaction did to these keys, except for values that
        later changes left as they were."""
        columns = list(self._route.columns)
        filled = {}
        for key, values in self._store.take_back(list(steps), columns).items():
            step = steps[key][0]
            if step.values is not None and not step.whole:
                filled[key] = [replace(step, values={**values, **step.values})]
        return {**steps, **filled}


def _size(step: Step) -> int:
    if step.values is None:
        return 0
    return sum(len(value) for value in step.values.values() if isinstance(value, bytes))
