"""Change data capture: changes of PostgreSQL databases become entries, and then changes elsewhere.

`reader` appends the changes that a `source` commits to millstream (`streams`); `applier` applies
them to the `destination`. Both may be killed at any time: their only state is in
`streams.source_state` and `destination.offsets`.
"""


class CdcError(Exception):
    """The text is for the user: it says what happened, to what, and what to do. A command ends with
    it in one line."""
