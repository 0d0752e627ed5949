"""What the errors of change data capture have in common."""

from __future__ import annotations


class CdcError(Exception):
    """The text is for the user: it says what happened, to what, and what to do. A command ends with
    it in one line."""
