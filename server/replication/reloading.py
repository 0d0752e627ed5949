"""Loading the files of the data directory again, into the running server.

The last step of a full sync and of a rewind: the files on the disk count already, and this repeats
what a start would do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from millstream.errors import DataError
from millstream.server.durability.data_files import in_words
from millstream.server.durability.directory_loader import LoadReport

if TYPE_CHECKING:
    from millstream.server.replication.node import Node

log = logging.getLogger("millstream.replication")

_SLICES_PER_TURN = 8


class Reload:
    """Empties the keyspace and reads the files in slices; clients get LOADING meanwhile.
    `on_done(error)` is called once. After an error the data in memory is incomplete."""

    def __init__(self, node: Node, on_done: Callable[[Exception | None], None]) -> None:
        self._node = node
        self._on_done = on_done
        node.executor.loading = True
        node.keyspace.begin_again()
        self._loader = node.persistence.begin_reading()
        self._slices: Iterator[None] = self._loader.read(
            node.persistence.files.manifest, LoadReport()
        )
        node.loop.call_soon(self._load)

    def _load(self) -> None:
        """Read the next slices."""
        node = self._node
        node.executor.recheck_limits()
        node.keyspace.expiring = False
        try:
            if self._read_slices():
                node.loop.call_soon(self._load)
                return
            self._check_end()
        except Exception as error:  # whatever it is, the change must end
            # The checksums were right: a start would fail in the same way.
            log.critical("the data cannot be loaded: %s", in_words(error))
            self._on_done(error)
            return
        finally:
            node.keyspace.expiring = True
        node.persistence.end_reading()
        node.executor.loading = False
        for index, key in list(node.executor.serving.waiting.keys()):
            node.keyspace.mark_ready(index, key)
        self._on_done(None)
        node.executor.applied()

    def _read_slices(self) -> bool:
        """Whether there are more."""
        slices = self._slices
        return all(next(slices, slices) is not slices for _ in range(_SLICES_PER_TURN))

    def _check_end(self) -> None:
        last_seq = self._loader.next_seq - 1
        if last_seq != self._node.persistence.last_seq or self._loader.torn is not None:
            raise DataError(
                f"the files end with frame {last_seq}, not {self._node.persistence.last_seq}"
            )
