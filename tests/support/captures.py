"""The contents of a capture, key by key, with small streams too."""

from __future__ import annotations

from collections.abc import Iterator

from millstream.storage.blocks.block import Block, seal_forms
from millstream.storage.capture.capture import Capture
from millstream.storage.capture.captured_keys import Captured
from millstream.storage.capture.small_rows import section_head, small_rows
from millstream.storage.capture.small_streams import SmallStreams

Step = list[Captured | SmallStreams]


def each(step: Step | None) -> Iterator[Captured]:
    """The keys of a step. It empties the batches of small streams."""
    for one in step or ():
        if isinstance(one, SmallStreams):
            yield from _each_small(one)
        else:
            yield one


def whole(capture: Capture, max_cost: int = 100) -> Iterator[Captured]:
    """All keys of a capture, which is closed at the end."""
    while (step := capture.step(max_cost)) is not None:
        yield from each(step)
    capture.close()


def _each_small(batch: SmallStreams) -> Iterator[Captured]:
    rows, forms = batch.take()
    seal_forms(forms)
    at = 0
    for db, key, kind, meta, _, pieces in small_rows(section_head(0) + rows):
        blocks = []
        if pieces:
            blocks, at = Block.unpack(forms, at, 1)
        yield Captured(db, key, kind, meta, blocks)
