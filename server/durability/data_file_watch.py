"""Detects that the data directory or its files were removed while the server runs."""

from __future__ import annotations

import logging
from collections.abc import Callable

from millstream.server.durability.data_files import DataFiles, gone, misconf
from millstream.server.durability.refusal import Refusal
from millstream.server.durability.workers import Scheduler, TaskWorker, post
from millstream.storage.files.manifest import NAME, Manifest

log = logging.getLogger("millstream.persistence")


class DataFileWatch:
    """Looks for the current files. No start would find the data written to removed files, so writes
    are refused.

    `is_attached()` tells whether there is a current journal, `is_replacing()` whether a snapshot is
    about to replace the files.
    """

    def __init__(
        self,
        files: DataFiles,
        refusal: Refusal,
        scheduler: Scheduler,
        worker: TaskWorker,
        *,
        is_attached: Callable[[], bool],
        is_replacing: Callable[[], bool],
    ) -> None:
        self._files = files
        self._refusal = refusal
        self._scheduler = scheduler
        self._worker = worker
        self._is_attached = is_attached
        self._is_replacing = is_replacing
        self._looking = False

    def check(self) -> None:
        """Start a check; a worker reads the directory."""
        if not self._is_attached():
            self._on_files(self._files.manifest, None)
        elif not self._looking:
            self._looking = True
            self._worker.submit(self._check_in_worker)

    def _check_in_worker(self) -> None:
        manifest = self._files.manifest
        lost = self._files.first_lost(manifest_only=self._is_replacing())
        post(self._scheduler, self._on_files, manifest, lost)

    def _on_files(self, manifest: Manifest, lost: str | None) -> None:
        self._looking = False
        if lost is not None and lost != NAME and manifest is not self._files.manifest:
            return  # the journal was replaced meanwhile
        if not self._is_attached():
            lost = None
        if lost is not None and self._refusal.lost is None:
            log.error(
                "%s in the data directory %s is gone, or the directory was replaced: writes are"
                " refused, because the next start would not find them; restore what is missing, or"
                " create the directory and write all data again with BGREWRITEAOF",
                lost,
                self._files.disk.directory,
            )
        elif lost is None and self._refusal.lost is not None:
            log.warning("the data directory is available again, writes are accepted")
        self._refusal.lost = None if lost is None else misconf(gone())
        self._refusal.update()
