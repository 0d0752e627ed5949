# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Numbers in values: reading and comparing them.

A number is `-?digits`, or a decimal with an optional fraction and an optional exponent; nothing else
is one, so that a filter does not depend on what a C library accepts. Integers of 64 bits are exact,
other numbers are the nearest double. An integer and a double are compared exactly, and so are an
integer and a bound, whatever digits it has.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.ref cimport PyObject
from libc.math cimport INFINITY
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint64_t

import re

from millstream.storage.blocks.numbers cimport Bound, Number

cdef extern from "Python.h":
    double PyOS_string_to_double(const char* text, char** end, PyObject* overflow) except? -1.0

cdef enum:
    # Further digits only say on which side of the middle between two doubles a number is.
    DIGITS_MOST = 780
    # With a larger exponent a number is 0 or infinite, however many zeros it has.
    EXPONENT_MOST = 1000000000000

    # A signed integer of 64 bits has at most 19 digits. An exponent with 19 is out of reach.
    INTEGER_DIGITS = 19

DECIMAL = re.compile(rb"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?)([0-9]+))?", re.DOTALL)

cdef double[23] TENS
for _power in range(23):
    TENS[_power] = <double>(10 ** _power)

cdef double TWO_63 = 9223372036854775808.0


cdef bint read_number(const char* text, Py_ssize_t size, Number* out) except -1:
    """Read a number that is the whole text; False if it is none."""
    cdef Py_ssize_t at = 0
    cdef uint64_t value = 0
    cdef uint64_t digit
    cdef bint negative = size > 0 and text[0] == c'-'
    cdef bint is_large = False
    at = negative
    while at < size:
        digit = <uint64_t>(<unsigned char>text[at]) - 48
        if digit > 9:
            break
        if value > 922337203685477580ULL:
            is_large = True
        else:
            value = value * 10 + digit
        at += 1
    if at == negative:
        return False
    if at == size and not is_large and value <= 9223372036854775807ULL + negative:
        out.is_integer = True
        if value > 9223372036854775807ULL:
            out.integer = INT64_MIN
        else:
            out.integer = -<int64_t>value if negative else <int64_t>value
        return True
    out.is_integer = False
    return read_decimal(text, size, negative, at, &out.real)


cdef bint read_decimal(const char* text, Py_ssize_t size, bint negative, Py_ssize_t whole_end,
                       double* out) except -1:
    """Read a number with a fraction or an exponent, or a large one: its digits go up to `whole_end`.
    Long ones are shortened first, without a change of the result."""
    cdef char[DIGITS_MOST + 40] digits
    cdef int count = 0
    cdef int64_t exponent = 0
    cdef uint64_t mantissa = 0
    cdef bint has_more = False
    cdef bint is_fraction = False
    cdef Py_ssize_t end = whole_end
    cdef Py_ssize_t at
    if end < size and text[end] == c'.':
        end += 1
        while end < size and c'0' <= text[end] <= c'9':
            end += 1
        if end == whole_end + 1:
            return False
    if not read_exponent(text, size, end, &exponent):
        return False
    for at in range(negative, end):
        if text[at] == c'.':
            is_fraction = True
            continue
        exponent -= is_fraction
        if count == 0 and text[at] == c'0':
            continue
        if count == DIGITS_MOST:
            has_more = has_more or text[at] != c'0'
            exponent += 1
            continue
        digits[count] = text[at]
        count += 1
        if count <= 15:
            mantissa = mantissa * 10 + <uint64_t>(text[at] - c'0')
    if count <= 15 and -22 <= exponent <= 22:
        # Both numbers are exact as doubles, so the result is rounded once.
        out[0] = <double>mantissa * TENS[exponent] if exponent >= 0 else (
            <double>mantissa / TENS[-exponent])
    elif count == 0:
        out[0] = 0.0
    else:
        if has_more:
            digits[count] = c'1'
            count += 1
            exponent -= 1
        out[0] = scaled(digits, count, exponent)
    if negative:
        out[0] = -out[0]
    return True


cdef bint read_exponent(const char* text, Py_ssize_t size, Py_ssize_t at,
                        int64_t* out) noexcept nogil:
    """Read the exponent that begins at `at` and ends the text; there may be none."""
    cdef bint negative
    cdef Py_ssize_t first
    if at == size:
        return True
    if text[at] != c'e' and text[at] != c'E':
        return False
    at += 1
    negative = at < size and text[at] == c'-'
    if negative or (at < size and text[at] == c'+'):
        at += 1
    first = at
    while at < size and c'0' <= text[at] <= c'9':
        if out[0] < EXPONENT_MOST:
            out[0] = out[0] * 10 + (text[at] - c'0')
        at += 1
    if negative:
        out[0] = -out[0]
    return at == size and at > first


cdef double scaled(char* digits, int count, int64_t exponent) except? -1.0:
    """These digits, after which there is space, with this exponent; infinite if it is too large."""
    cdef int at = count
    cdef int64_t power = 1
    cdef int64_t size
    exponent = min(max(exponent, <int64_t>-99999), <int64_t>99999)
    digits[at] = c'e'
    digits[at + 1] = c'-' if exponent < 0 else c'+'
    at += 2
    size = exponent if exponent >= 0 else -exponent
    while power * 10 <= size:
        power *= 10
    while power:
        digits[at] = <char>(48 + size // power % 10)
        at += 1
        power //= 10
    digits[at] = 0
    return PyOS_string_to_double(digits, NULL, NULL)


cdef int compare_numbers(const Number* one, const Number* other) noexcept nogil:
    """Below 0, 0 or above 0, as `one` is less than, equal to or greater than `other`."""
    if one.is_integer and other.is_integer:
        return (one.integer > other.integer) - (one.integer < other.integer)
    if one.is_integer:
        return compare_mixed(one.integer, other.real)
    if other.is_integer:
        return -compare_mixed(other.integer, one.real)
    return (one.real > other.real) - (one.real < other.real)


cdef int compare_mixed(int64_t integer, double real) noexcept nogil:
    """Compare an integer, which may have no double, with a double, which may have no integer."""
    cdef int64_t whole
    cdef double rest
    if real >= TWO_63:
        return -1
    if real < -TWO_63:
        return 1
    whole = <int64_t>real
    if integer != whole:
        return 1 if integer > whole else -1
    rest = real - <double>whole
    return (rest < 0) - (rest > 0)


# ---------------------------------------------------------------- bounds

cdef bint read_bound(bytes text, Bound* out) except -1:
    """Read a bound: a number, -inf or +inf; False if it is neither."""
    out.floor = 0
    out.has_rest = False
    out.beyond = 0
    if text.lower() in (b"-inf", b"+inf"):
        out.beyond = -1 if text[:1] == b"-" else 1
        out.number.is_integer = False
        out.number.real = out.beyond * INFINITY
        return True
    if not read_number(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text), &out.number):
        return False
    if out.number.is_integer:
        out.floor = out.number.integer
        return True
    negative, whole, fraction, sign, exponent = DECIMAL.fullmatch(text).groups(b"")
    exponent = exponent.lstrip(b"0")[:INTEGER_DIGITS] or b"0"
    power = -int(exponent) if sign == b"-" else int(exponent)
    digits = (whole + fraction).lstrip(b"0")
    set_floor(out, bool(negative), digits, len(digits) - len(fraction) + power)
    return True


cdef int set_floor(Bound* bound, bint negative, bytes digits, point) except -1:
    """Set what integers are compared with, from digits that do not begin with 0, and the number of
    them before the point."""
    if digits and point > INTEGER_DIGITS:
        bound.beyond = -1 if negative else 1
        return 0
    whole = int(digits[:point].ljust(point, b"0")) if point > 0 else 0
    bound.has_rest = bool(digits[max(point, 0):].strip(b"0"))
    floor = -whole - bound.has_rest if negative else whole
    if INT64_MIN <= floor <= INT64_MAX:
        bound.floor = floor
    else:
        bound.beyond = -1 if negative else 1
    return 0


cdef int compare_to_bound(const Number* one, const Bound* bound) noexcept nogil:
    """Below 0, 0 or above 0, as a number is less than, equal to or greater than a bound."""
    if not one.is_integer:
        return compare_numbers(one, &bound.number)
    if bound.beyond:
        return -bound.beyond
    if one.integer != bound.floor:
        return 1 if one.integer > bound.floor else -1
    return -1 if bound.has_rest else 0
