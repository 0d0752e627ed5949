"""The frames that are not on the disk, and what the log says about them when the server stops."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from millstream.storage.files.journal_writer import Journal

log = logging.getLogger("millstream.persistence")


if TYPE_CHECKING:

    class Config(Protocol):
        """The directive used here; read each time, so that CONFIG SET works."""

        appendfsync_groups: str


class Unsaved:
    """Frames of a failed journal that are not on the disk; `since_ms` is the time of detection."""

    def __init__(
        self,
        first_seq: int,
        last_seq: int,
        since_ms: int,
    ) -> None:
        self.first_seq = first_seq
        self.last_seq = last_seq
        self.since_ms = since_ms


class UnsyncedFrames:
    """`journals()` are the journals that may have frames that are not on the disk, oldest first; it
    is called from any thread. `clock` returns milliseconds since the epoch."""

    def __init__(
        self, config: Config, journals: Callable[[], list[Journal]], clock: Callable[[], int]
    ) -> None:
        self._config = config
        self._journals = journals
        self._clock = clock
        self._unsaved: Unsaved | None = None

    def note_failed(self, journal: Journal, last_seq: int) -> None:
        """A journal has failed: remember its frames up to `last_seq` that are not on the disk."""
        if self._unsaved is None and last_seq > journal.synced_seq:
            self._unsaved = Unsaved(journal.synced_seq + 1, last_seq, self._clock())

    def forget_failed(self) -> None:
        """A new base has the frames of the failed journal."""
        self._unsaved = None

    def _unsynced(self) -> list[Journal]:
        return [journal for journal in self._journals() if journal.synced_seq < journal.last_seq]

    def frames(self) -> tuple[int, int] | None:
        """The first and the last frame that are not known to be on the disk; from any thread."""
        journals = self._unsynced()
        if not journals:
            return None
        return journals[0].synced_seq + 1, journals[-1].last_seq

    def _replies(self) -> str:
        """The replies that clients may have had to frames that are not on the disk."""
        if self._config.appendfsync_groups == "everysec":
            return (
                "under appendfsync always with appendfsync-groups everysec, clients may have had"
                " replies to deliveries and acknowledgements in them, but to nothing else"
            )
        return "under appendfsync always, no client has had a reply that shows them"

    def tell_waiting(self, waited_s: float) -> None:
        """Log what a stop waits for."""
        found = self.frames()
        if found is not None:
            log.warning(
                "stopping: waiting for the disk for %.0f seconds: journal frames %d to %d are not"
                " synced (%d in all, %d bytes are not written); a second signal abandons them",
                waited_s,
                *found,
                found[1] - found[0] + 1,
                sum(journal.queued_bytes for journal in self._unsynced()),
            )
        else:
            log.warning(
                "stopping: waiting for the disk for %.0f seconds; a second signal ends the server"
                " immediately",
                waited_s,
            )

    def tell_given_up(self, by: str) -> None:
        """Log what an immediate end loses, and the signal that causes it; called on any thread."""
        found = self.frames()
        if self._unsaved is not None:
            self.tell_unsaved()
        elif found is not None:
            log.error(
                "stopped by %s: journal frames %d to %d are not on the disk (%d in all); %s",
                by,
                *found,
                found[1] - found[0] + 1,
                self._replies(),
            )
        else:
            log.error("stopped by %s", by)

    def tell_unsaved(self) -> None:
        """Log what a stop without a complete base loses."""
        unsaved = self._unsaved
        if unsaved is None:
            log.error("stopping with data that is not on the disk: no complete base was written")
            return
        log.error(
            "stopping with data that is not on the disk: journal frames %d to %d, since %s UTC (%d"
            " in all); %s",
            unsaved.first_seq,
            unsaved.last_seq,
            time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(unsaved.since_ms / 1000)),
            unsaved.last_seq - unsaved.first_seq + 1,
            self._replies(),
        )
