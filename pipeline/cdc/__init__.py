"""Change data capture: changes of PostgreSQL databases become entries, and then changes elsewhere.

`reader` brings what a `source` commits to millstream (`streams`); `applier` brings it from there to
the `destination`. Both may die at any time: `streams.state` and `destination.positions` are all
that they remember.
"""
