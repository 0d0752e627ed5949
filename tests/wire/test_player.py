"""The transcripts can fail: the player rejects every reply that differs from the text."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.reply_patterns import Kept, Matcher, TranscriptError, read_pattern
from tests.support.resp import Error, Map, Null, Push, Reply, Simple
from tests.support.server import Server
from tests.support.transcript import Mismatch, Player, read_transcript

CASES: list[tuple[str, Reply, int, bool]] = [
    ('"a"', b"a", 2, True),
    ('"a"', b"b", 2, False),
    ('"OK"', Simple("OK"), 2, False),
    ("+OK", Simple("OK"), 2, True),
    ("+OK", b"OK", 2, False),
    ("1", 1, 2, True),
    ("1", 2, 2, False),
    ("1", b"1", 2, False),
    ("1", True, 3, False),
    ("#t", 1, 3, False),
    ("#t", True, 3, True),
    ("nil", Null.BULK, 2, True),
    ("nil", Null.ARRAY, 2, False),
    ("nil[]", Null.ARRAY, 2, True),
    ("nil[]", Null.BULK, 2, False),
    ("nil", Null.RESP3, 3, True),
    ("nil[]", Null.RESP3, 3, True),
    ("nil", Null.BULK, 3, False),
    ("[]", [], 2, True),
    ("[]", Null.ARRAY, 2, False),
    ("[1, 2]", [1, 2], 2, True),
    ("[1, 2]", [1, 2, 3], 2, False),
    ("[1, 2]", [1], 2, False),
    ("[1, ...]", [1, 2, 3], 2, True),
    ("[..., 3]", [1, 2, 3], 2, True),
    ("[..., 3]", [1, 2], 2, False),
    ("[1, ..., 1]", [1], 2, False),
    ('{"a": 1}', [b"a", 1], 2, True),
    ('{"a": 1}', [b"a", 2], 2, False),
    ('{"a": 1}', [b"a", 1, b"b", 2], 2, False),
    ('{"a": 1, ...}', [b"b", 2, b"a", 1], 2, True),
    ('{"a": 1, ...}', [b"b", 2], 2, False),
    ('{"a": 1}', Map([(b"a", 1)]), 3, True),
    ('{"a": 1}', [b"a", 1], 3, False),
    ('pairs{"a": 1}', [[b"a", 1]], 2, True),
    ('pairs{"a": 1}', [b"a", 1], 2, False),
    ('pairs{"a": 1}', Map([(b"a", 1)]), 3, True),
    ("push[1]", Push([1]), 3, True),
    ("push[1]", [1], 3, False),
    ("push[1]", [1], 2, True),
    ("<tid>", b"1.1", 2, True),
    ("<tid>", b"1-1", 2, False),
    ("<tid>", b"1.1 ", 2, False),
    ("<xid>", b"1-1", 2, True),
    ("<int 3..5>", 4, 2, True),
    ("<int 3..5>", 6, 2, False),
    ("<int 3..>", 2, 2, False),
    ("<any>", [b"a", Null.BULK], 2, True),
    ("<any>", Error("ERR a"), 2, False),
    ("-ERR a b", Error("ERR a b"), 2, True),
    ("-ERR a b", Error("ERR a b c"), 2, False),
    ("-ERR a ...", Error("ERR a b"), 2, True),
    ("-ERR b ...", Error("ERR a b"), 2, False),
    ('[-"ERR a"]', [Error("ERR a")], 2, True),
    ('"${a}"', b"5.7", 2, True),
    ('"${a.x}"', b"5-7", 2, True),
    ('"${a.ms+1}.${a.seq-1}"', b"6.6", 2, True),
    (r'"\x00\r\n\$\""', b'\x00\r\n$"', 2, True),
]


@pytest.mark.parametrize(("pattern", "reply", "protocol", "fits"), CASES)
def test_a_pattern_distinguishes_replies(
    pattern: str, reply: Reply, protocol: int, fits: bool
) -> None:
    kept: dict[str, Kept] = {}
    assert Matcher(2, kept).fits(read_pattern("<tid:a>"), b"5.7")
    assert Matcher(protocol, kept).fits(read_pattern(pattern), reply) is fits


@pytest.mark.parametrize(
    "conversation",
    [
        "> PING\n+PANG",
        "> PING\n",
        "> PING\n+PONG\n[b] silent extra\n",
        "[b] >> PING\n[b] silent",
        "mark t\nat least 100000 ms since t",
        "> XADD s 1-1 f v\n<tid>",
        "repeat 2 > XADD s 1-1 f v",
        "> XRANGE s - ${unknown}\n[]",
    ],
)
def test_wrong_conversation_fails(conversation: str, tmp_path: Path, redis_server: Server) -> None:
    path = tmp_path / "wrong.txt"
    path.write_text("== wrong\n" + conversation)

    def play() -> None:
        for section in read_transcript(path):
            # More than once: what `silent` must notice may arrive a moment after it looked.
            for _ in range(100):
                Player(section, redis_server).play()

    with pytest.raises((Mismatch, TranscriptError)):
        play()
