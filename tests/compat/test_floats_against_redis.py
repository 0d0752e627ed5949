"""INCRBYFLOAT compared with a real redis-server: thousands of random sums, to the last digit."""

from __future__ import annotations

import random

from tests.support.server import Server

PAIRS = 3000
TOGETHER = 100
SEED = 20261122
ODD_TEXTS = (
    "inf", "-Infinity", "nan", "0x", "0x1p", "0x1p-16445", "0x1p-16446", "0x1p16384",
    "0x1.fffffffffffffffep16383", "0x1.ffffffffffffffffp16383",
    "1e", "e1", ".", "-", "+", "", ".5", "5.", "1e5.",
    "1 ", " 1", "\t1", "--1", "0", "-0", "0e99999999999999999999", "1e99999999999999999999",
    "1e-99999999999999999999", "1_0", "3.0e3",
)  # fmt: skip


def random_text(chance: random.Random) -> str:
    """A number in one of the forms that differ in how they round, or no number at all."""
    sign = chance.choice(("", "", "-", "+"))
    digits = chance.randrange(10 ** chance.randrange(1, 40))
    forms = (
        lambda: f"{digits}",
        lambda: f"{chance.random():.{chance.randrange(1, 30)}f}",
        lambda: f"{digits}.{chance.randrange(10 ** chance.randrange(1, 25))}",
        lambda: f"{chance.random()}e{chance.randrange(-30, 30)}",
        lambda: f"{chance.randrange(1, 10**6)}E{chance.randrange(-5100, 5100)}",
        lambda: f"0x{chance.randrange(2**80):x}.{chance.randrange(2**40):x}p{chance.randrange(99)}",
        lambda: "1" * chance.choice((4200, 4301, 4932, 4933, 5119, 5120)),
        lambda: "0." + "1" * chance.choice((4200, 5000, 5117, 5118)),
        lambda: f"{chance.randrange(2**64)}.{chance.choice(('5', '25', '0625', '4' + '9' * 20))}",
        lambda: f"{abs(chance.randrange(-1000, 1000)) / chance.choice((2, 8, 10, 3, 7))}",
        lambda: chance.choice(ODD_TEXTS),
    )
    return sign + chance.choice(forms)()


def test_sums_are_those_of_redis(server: Server, redis_server: Server) -> None:
    chance = random.Random(SEED)
    pairs = [(random_text(chance), random_text(chance)) for _ in range(PAIRS)]
    with server.client() as ours, redis_server.client() as theirs:
        for first in range(0, PAIRS, TOGETHER):
            some = pairs[first : first + TOGETHER]
            requests = [
                request
                for value, increment in some
                for request in (("SET", "k", value), ("INCRBYFLOAT", "k", increment), ("GET", "k"))
            ]
            found, expected = ours.pipeline(requests), theirs.pipeline(requests)
            for place, pair in enumerate(some):
                replies = slice(3 * place, 3 * place + 3)
                assert found[replies] == expected[replies], pair
