"""Loading of the data directory: at start, for DEBUG RELOAD, and after the files were replaced."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

from millstream.server.durability.data_files import DataFiles, unreadable
from millstream.server.durability.directory_loader import Loader, LoadReport, Progress
from millstream.server.durability.workers import Machine
from millstream.storage.files.lock_guard import BEAT_S
from millstream.storage.files.manifest import Manifest

log = logging.getLogger("millstream.persistence")


class DataLoading:
    """The current loading, or the last one. `new_loader()` makes an object that reads the files
    once.

    `keys` is the number of keys that the start has loaded.
    """

    def __init__(self, machine: Machine, new_loader: Callable[[], Loader]) -> None:
        self._machine = machine
        self._new_loader = new_loader
        self.is_running = False
        self.start_wall_ms = 0
        self.start_steady_ms = 0
        self.keys = 0
        self.loader = new_loader()

    def _note_start(self) -> None:
        self.is_running = True
        self.start_wall_ms = self._machine.clock()
        self.start_steady_ms = self._machine.steady_clock()

    def begin(self) -> Loader:
        """A loader for the current files, which fills the running keyspace."""
        self._note_start()
        self.loader = self._new_loader()
        return self.loader

    def start(
        self,
        files: DataFiles,
        report: LoadReport,
        progress: Progress | None,
        then: Callable[[Loader, LoadReport], None],
    ) -> Generator[None, None, None]:
        """Lock the directory and load it, in slices; `then` is called when all frames are read."""
        self._note_start()
        files.disk.lock()
        if files.disk.lock_doubt:
            log.warning(
                "the file system of %s cannot lock (%s): a second server is kept out only by the"
                " lock file, which this one rewrites every %d seconds",
                files.disk.directory,
                files.disk.lock_doubt,
                BEAT_S,
            )
        try:
            files.open(report)
            yield
            yield from files.remove_leftovers(report)
            loader = self.loader = self._new_loader()
            yield from loader.read(files.manifest, report, progress)
            then(loader, report)
        except OSError as error:
            raise unreadable(error) from error
        report.seconds = (self._machine.steady_clock() - self.start_steady_ms) / 1000
        report.bytes = self.loader.done_bytes
        self.keys = report.keys
        self.is_running = False
        for note in report.notes:
            log.warning("%s", note)

    def read_again(
        self, manifest: Manifest, report: LoadReport, empty: Callable[[], None]
    ) -> Loader:
        """Empty the keyspace and load the files; return the loader, which has read everything."""
        loader = self._new_loader()
        with without_collections():
            empty()
            try:
                for _ in loader.read(manifest, report):
                    pass
            except OSError as error:
                raise unreadable(error) from error
        return loader


@contextmanager
def without_collections() -> Iterator[None]:
    """Disable garbage collection while data is loaded: there is no garbage, and collections would
    traverse the same new objects repeatedly."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
