"""Random plays on both servers: every reply, and all that can be seen, must be equal.

More of them: `python -m tests.compat.compare --seeds 10000`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.compat.compare import Comparison, Difference, drawn, lag_promised, new_servers, shortest

BATCHES = 8
BATCH_SEEDS = 50


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Comparison]]:
    """Both servers, by protocol."""
    servers = new_servers(tmp_path_factory.mktemp("compared"))
    yield {protocol: Comparison(*servers, protocol) for protocol in (2, 3)}
    for server in servers:
        server.kill()


@pytest.mark.parametrize("batch", range(BATCHES))
def test_both_servers_send_the_same_replies(compared: dict[int, Comparison], batch: int) -> None:
    for seed in range(batch * BATCH_SEEDS, (batch + 1) * BATCH_SEEDS):
        protocol, requests = drawn(seed)
        found = compared[protocol].difference(requests)
        if found is not None:
            short = shortest(found, compared[protocol].difference)
            pytest.fail(f"seed {seed}, RESP{protocol}:\n{short}")


def test_a_difference_is_shown_in_as_few_words_as_can_be() -> None:
    def differs(requests: list[list[str]]) -> Difference | None:
        """A condition: C comes with an x somewhere after A."""
        at = [words[0] for words in requests].index("A") if ["A"] in requests else len(requests)
        for number, words in enumerate(requests):
            if number > at and words[0] == "C" and "x" in words:
                return Difference(requests[: number + 1], "1", "2")
        return None

    play = [["B"], ["A"], ["C"], ["B", "x"], ["C", "y", "x", "z"], ["B"]]
    found = differs(play)
    assert found is not None
    assert shortest(found, differs).requests == [["A"], ["C", "x"]]


@pytest.mark.parametrize(
    ("length", "added", "first", "deleted", "at", "read", "lag"),
    [
        (0, 5, b"0-0", b"5-1", b"1-1", 1, 0),  # no reply has arrived
        (3, 5, b"3-1", b"2-1", b"1-1", 9, 3),  # all that is there is before it
        (5, 5, b"1-1", b"0-0", b"2-1", 2, 3),
        (4, 5, b"1-1", b"3-1", b"2-1", 2, None),  # one of those before it is missing
        (4, 5, b"1-1", b"2-1", b"3-1", 3, 2),  # the missing one is after it
        (4, 5, b"1-1", b"2-1", b"5-1", None, 0),
        (5, 5, b"1-1", b"0-0", b"1-1", None, 4),
        (5, 5, b"1-1", b"0-0", b"2-1", None, None),
    ],
)
def test_the_promised_lag(
    length: int, added: int, first: bytes, deleted: bytes, at: bytes, read: int | None,
    lag: int | None,
) -> None:  # fmt: skip
    stream = {b"length": length, b"entries-added": added, b"last-generated-id": b"5-1",
              b"recorded-first-entry-id": first, b"max-deleted-entry-id": deleted}  # fmt: skip
    group = {b"last-delivered-id": at, b"entries-read": read}
    assert lag_promised(stream, group) == lag  # type: ignore[arg-type]
