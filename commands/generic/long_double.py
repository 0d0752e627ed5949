"""Numbers of INCRBYFLOAT: C's `long double` as x86-64 has it, computed with Python integers.

Redis adds in 80-bit numbers (a 64-bit significand) and stores the sum with up to 17 decimals. A
Python float has 53 bits, so sums would differ from Redis' in the last digits. A number here is a
pair (significand, exponent): its value is significand * 2**exponent. Every result is rounded once,
to the nearest, ties to even, as the processor and the C library do.
"""

from __future__ import annotations

import re

TEXT_MAX_BYTES = 5 * 1024  # Redis does not accept longer texts as numbers
SIGNIFICAND_BITS = 64
EXPONENT_MIN = -16445  # of the lowest bit of the smallest number
EXPONENT_MAX = 16384 - SIGNIFICAND_BITS
DECIMALS = 17
# A text with this many digits before or after the point is out of range, whatever they are.
DIGITS_MAX = 2 * TEXT_MAX_BYTES

PIECE_DIGITS = 4000
TEN_TO_PIECE: int = 10**PIECE_DIGITS

_DECIMAL = rb"([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d+))?"
_HEXADECIMAL = rb"([+-]?)0[xX]([0-9a-fA-F]*)(?:\.([0-9a-fA-F]*))?(?:[pP]([+-]?\d+))?"
_INFINITY = rb"([+-]?)inf(?:inity)?"


class LongDouble:
    """`infinite` is -1 or 1 for an infinity, whose other fields then mean nothing."""

    def __init__(
        self,
        significand: int,
        exponent: int,
        infinite: int = 0,
    ) -> None:
        self.significand = significand
        self.exponent = exponent
        self.infinite = infinite


ZERO = LongDouble(0, 0)
LARGEST = LongDouble((1 << SIGNIFICAND_BITS) - 1, EXPONENT_MAX)
SMALLEST = LongDouble(-LARGEST.significand, EXPONENT_MAX)


def parse(text: bytes) -> LongDouble | None:
    """Parse a number as Redis does; None for other texts, NaN, and numbers out of range."""
    if not 0 < len(text) < TEXT_MAX_BYTES:
        return None
    if match := re.fullmatch(_INFINITY, text.lower()):
        return LongDouble(0, 0, -1 if match[1] == b"-" else 1)
    if match := re.fullmatch(_HEXADECIMAL, text):
        found = _parsed(match, 16, 2, 4)
    elif match := re.fullmatch(_DECIMAL, text):
        found = _parsed(match, 10, 10, 1)
    else:
        return None
    if found is None or found.infinite:
        return None
    return found


def _parsed(match: re.Match[bytes], base: int, power: int, digit_powers: int) -> LongDouble | None:
    """Digits in this base, times `power` to the exponent; a digit is `digit_powers` of these."""
    whole, part = match[2], match[3] or b""
    if not whole and not part:
        return None
    digits = _integer(whole + part, base)
    if not digits:
        return ZERO
    exponent = _bounded(match[4] or b"0") - len(part) * digit_powers
    number = _rounded_power(-digits if match[1] == b"-" else digits, power, exponent)
    return number if number.infinite or number.significand else None  # underflow: out of range


def _integer(text: bytes, base: int) -> int:
    """int(), in pieces: Python refuses decimal texts of more than 4,300 digits at once."""
    if base != 10 or len(text) <= PIECE_DIGITS:
        return int(text, base)
    head, tail = text[:-PIECE_DIGITS], text[-PIECE_DIGITS:]
    return _integer(head, base) * TEN_TO_PIECE + int(tail)


def _text(number: int) -> bytes:
    """The decimal text of a number from 0 on, in pieces for the same reason."""
    head, tail = divmod(number, TEN_TO_PIECE)
    return _text(head) + b"%0*d" % (PIECE_DIGITS, tail) if head else b"%d" % tail


def _bounded(exponent: bytes) -> int:
    """An exponent's value, or one that is far out of range when its text is long."""
    limit = 16 * DIGITS_MAX
    if len(exponent.lstrip(b"+-0")) > 9:
        return -limit if exponent[:1] == b"-" else limit
    return max(-limit, min(limit, int(exponent)))


def _rounded_power(digits: int, power: int, exponent: int) -> LongDouble:
    """digits * power**exponent, rounded."""
    if power == 2:
        return _rounded(digits, 1, exponent)
    if exponent < -2 * DIGITS_MAX:
        return ZERO
    if exponent > DIGITS_MAX:
        return LongDouble(0, 0, -1 if digits < 0 else 1)
    if exponent >= 0:
        return _rounded(digits * 10**exponent, 1, 0)
    return _rounded(digits, 10**-exponent, 0)


def _rounded(numerator: int, denominator: int, exponent: int) -> LongDouble:
    """numerator / denominator * 2**exponent as the nearest long double, ties to even."""
    sign, size = (-1, -numerator) if numerator < 0 else (1, numerator)
    if not size:
        return ZERO
    # The quotient then has 64 or 65 bits, unless the number is too small for that many.
    drop = size.bit_length() - denominator.bit_length() - SIGNIFICAND_BITS
    while True:
        drop = max(drop, EXPONENT_MIN - exponent)
        quotient = _divided(size, denominator, drop)
        if quotient.bit_length() <= SIGNIFICAND_BITS:
            break
        drop += 1
    if quotient and quotient.bit_length() + exponent + drop > SIGNIFICAND_BITS + EXPONENT_MAX:
        return LongDouble(0, 0, sign)
    return LongDouble(sign * quotient, exponent + drop)


def _divided(size: int, denominator: int, drop: int) -> int:
    """size / denominator / 2**drop, rounded to an integer, ties to even."""
    if drop >= 0:
        denominator <<= drop
    else:
        size <<= -drop
    quotient, rest = divmod(size, denominator)
    return quotient + (2 * rest > denominator or (2 * rest == denominator and quotient & 1))


def add(one: LongDouble, other: LongDouble) -> LongDouble | None:
    """The sum, rounded; None for infinity less infinity."""
    if one.infinite or other.infinite:
        if one.infinite + other.infinite == 0:
            return None
        return one if one.infinite else other
    low = min(one.exponent, other.exponent)
    total = (one.significand << (one.exponent - low)) + (
        other.significand << (other.exponent - low)
    )
    return _rounded(total, 1, low)


def subtract(one: LongDouble, other: LongDouble) -> LongDouble | None:
    return add(one, LongDouble(-other.significand, other.exponent, -other.infinite))


def is_greater(one: LongDouble, other: LongDouble) -> bool:
    if one.infinite or other.infinite:
        return one.infinite > other.infinite
    low = min(one.exponent, other.exponent)
    return one.significand << (one.exponent - low) > other.significand << (other.exponent - low)


def format_human(number: LongDouble) -> bytes:
    """Redis' text for a number: 17 decimals, rounded, without trailing zeros."""
    if number.infinite:
        return b"inf" if number.infinite > 0 else b"-inf"
    size = abs(number.significand) * 10**DECIMALS
    scaled = (
        size << number.exponent if number.exponent >= 0 else _divided(size, 1, -number.exponent)
    )
    if not scaled:
        return b"0"
    whole, part = divmod(scaled, 10**DECIMALS)
    sign = b"-" if number.significand < 0 else b""
    text = b"%b.%017d" % (_text(whole), part)
    return sign + text.rstrip(b"0").rstrip(b".")
