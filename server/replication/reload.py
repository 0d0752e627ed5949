"""Loading the files of the data directory again, into the running server.

The last step of a full sync and of a rewind: the files on the disk count already, and this repeats
what a start would do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from millstream.errors import DataError
from millstream.server.durability.data_files import in_words
from millstream.server.durability.directory_loader import LoadReport

if TYPE_CHECKING:
    from millstream.server.durability.persistence import Persistence
    from millstream.server.durability.workers import Machine
    from millstream.server.execution.executor import Executor
    from millstream.storage.keyspace.keyspace import Keyspace

log = logging.getLogger("millstream.replication")

_SLICES_PER_TURN = 8


class ChangeTools(NamedTuple):
    """Callbacks of full syncs and rewinds. `reload(on_done)` loads the new files, `on_published` is
    called when they count on the disk."""

    machine: Machine
    persistence: Persistence
    executor: Executor
    reload: Callable[[Callable[[Exception | None], None]], object]
    on_published: Callable[[], None]


class Reload:
    """Empties the keyspace and reads the files in slices; clients get LOADING meanwhile.
    `on_done(error)` is called once. After an error the data in memory is incomplete."""

    def __init__(
        self,
        machine: Machine,
        keyspace: Keyspace,
        persistence: Persistence,
        executor: Executor,
        on_done: Callable[[Exception | None], None],
    ) -> None:
        self._loop = machine.scheduler
        self._keyspace = keyspace
        self._persistence = persistence
        self._executor = executor
        self._on_done = on_done
        executor.loading = True
        keyspace.begin_again()
        self._loader = persistence.begin_reading()
        self._slices: Iterator[None] = self._loader.read(persistence.files.manifest, LoadReport())
        self._loop.call_soon(self._load)

    def _load(self) -> None:
        """Read the next slices."""
        self._executor.recheck_limits()
        self._keyspace.expiring = False
        try:
            if self._read_slices():
                self._loop.call_soon(self._load)
                return
            self._check_end()
        except Exception as error:  # whatever it is, the change must end
            # The checksums were right: a start would fail in the same way.
            log.critical("the data cannot be loaded: %s", in_words(error))
            self._on_done(error)
            return
        finally:
            self._keyspace.expiring = True
        self._persistence.end_reading()
        self._executor.loading = False
        for index, key in list(self._executor.serving.waiting.keys()):
            self._keyspace.mark_ready(index, key)
        self._on_done(None)
        self._executor.applied()

    def _read_slices(self) -> bool:
        """True if there are more."""
        slices = self._slices
        return all(next(slices, slices) is not slices for _ in range(_SLICES_PER_TURN))

    def _check_end(self) -> None:
        last_seq = self._loader.next_seq - 1
        if last_seq != self._persistence.last_seq or self._loader.torn is not None:
            raise DataError(
                f"the files end with frame {last_seq}, not {self._persistence.last_seq}"
            )
