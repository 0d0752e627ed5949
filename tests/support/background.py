"""A client or an operator that works in a thread of its own until it is stopped."""

from __future__ import annotations

import threading


class Background:
    """Begins when it is made, so the constructor of a subclass calls this one last."""

    def __init__(self) -> None:
        self._is_stopped = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run_once, daemon=True)
        self._thread.start()

    def _run_once(self) -> None:
        try:
            self._run()
        except Exception as failure:
            self._failure = failure

    def _run(self) -> None:
        """Work until `_is_stopped` is set."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop, and raise the exception that has ended the work before."""
        self._is_stopped.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
