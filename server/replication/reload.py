"""Loading the files of the data directory again, into the running server.

The last step of a full sync and of a rewind: the files on the disk count already, and this repeats
what a start would do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from millstream.errors import DataError
from millstream.server.durability.data_files import in_words
from millstream.server.durability.directory_loader import LoadReport
from millstream.server.durability.persistence import Persistence
from millstream.server.durability.workers import Machine
from millstream.server.execution.executor import Executor
from millstream.storage.keyspace.keyspace import Keyspace

log = logging.getLogger("millstream.replication")

_SLICES_PER_TURN = 8


class ChangeTools(NamedTuple):
    """Tools of full syncs and rewinds. `reload(on_done)` loads the new files, `on_published` is
    called when they count on the disk."""

    machine: Machine
    persistence: Persistence
    executor: Executor
    reload: Callable[[Callable[[Exception | None], None]], object]
    on_published: Callable[[], None]


@dataclass(eq=False, repr=False)
class Reload:
    """Empties the keyspace and reads the files in slices; clients get LOADING meanwhile.
    `on_done(error)` is called once. After an error the data in memory is incomplete."""

    machine: Machine
    keyspace: Keyspace
    persistence: Persistence
    executor: Executor
    on_done: Callable[[Exception | None], None]

    def __post_init__(self) -> None:
        self._loop = self.machine.scheduler
        self.executor.begin_loading()
        self.keyspace.begin_again()
        self._loader = self.persistence.begin_reading()
        self._slices: Iterator[None] = self._loader.read(
            self.persistence.files.manifest, LoadReport()
        )
        self._loop.call_soon(self._load)

    def _load(self) -> None:
        """Read the next slices."""
        self.executor.recheck_limits()
        self.keyspace.expiring = False
        try:
            if self._read_slices():
                self._loop.call_soon(self._load)
                return
            self._check_end()
        except Exception as error:  # whatever it is, the change must end
            # The checksums were right: a start would fail in the same way.
            log.critical("the data cannot be loaded: %s", in_words(error))
            self.on_done(error)
            return
        finally:
            self.keyspace.expiring = True
        self.persistence.end_reading()
        self.executor.end_loading()
        for index, key in list(self.executor.serving.waiting.keys()):
            self.keyspace.mark_ready(index, key)
        self.on_done(None)
        self.executor.applied()

    def _read_slices(self) -> bool:
        """True if there are more."""
        slices = self._slices
        return all(next(slices, slices) is not slices for _ in range(_SLICES_PER_TURN))

    def _check_end(self) -> None:
        last_seq = self._loader.next_seq - 1
        if last_seq != self.persistence.commits.last_seq or self._loader.torn is not None:
            raise DataError(
                f"the files end with frame {last_seq}, not {self.persistence.commits.last_seq}"
            )
