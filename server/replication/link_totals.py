"""The events on the links to primaries, for INFO."""

from __future__ import annotations


class LinkTotals:
    """The events on all links of this server so far."""

    def __init__(self) -> None:
        self.received_bytes = 0
        self.connection_errors = 0  # connections to the primary that failed or were lost
        self.link_errors = 0  # bytes of the primary that are not allowed
        self.refusals = 0  # errors of the primary
        self.failed_syncs = 0  # full syncs and rewinds that could not be completed
        self.kept_data = 0  # full syncs refused because the primary has less data
        self.rewinds = 0
        self.last_error = ""
        self.warned_of_clock = False
