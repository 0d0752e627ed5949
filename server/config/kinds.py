"""Reading and showing the values of directives: a Kind for each form of value."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from millstream.commands.runtime.keyspace_events import LETTERS, NOT_OF_ALL, OF_ALL

INT32_MAX = 2**31 - 1
UINT32_MAX = 2**32 - 1
INT64_MAX = 2**63 - 1
UINT64_MAX = 2**64 - 1
MEGABYTE = 1024**2


class Kind:
    """`parse(text, current)` returns the value or raises ValueError with Redis' text; `show`
    returns the text for CONFIG GET; `many` allows several words in a file's line. With
    `line_words`, a file has one line for this number of words, and `parse` combines lines."""

    def __init__(
        self,
        parse: Callable[[str, Any], Any],
        show: Callable[[Any], str],
        name: str,
        many: bool = False,
        line_words: int = 0,
    ) -> None:
        self.parse = parse
        self.show = show
        self.name = name
        self.many = many
        self.line_words = line_words


def _parse_yes_no(text: str, current: object) -> bool:
    answers = {"yes": True, "no": False}
    if text.lower() not in answers:
        raise ValueError("argument must be 'yes' or 'no'")
    return answers[text.lower()]


YES_NO = Kind(_parse_yes_no, lambda value: "yes" if value else "no", "yes or no")


def _within(value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise ValueError(f"argument must be between {low} and {high} inclusive")
    return value


# Python's int() and float() accept more than Redis (1_000, the digits of all alphabets) and have
# their own messages, so directives are read with the following functions.


def parse_integer(text: str) -> int:
    """A number of 64 bits in ASCII digits."""
    found = re.fullmatch(r"([+-]?)0*([0-9]{1,19})", text)
    number = int(found[1] + found[2]) if found else INT64_MAX + 1
    if not -INT64_MAX - 1 <= number <= INT64_MAX:
        raise ValueError("argument couldn't be parsed into an integer")
    return number


def parse_decimal(text: str) -> float:
    """A number with an optional fraction and exponent in ASCII digits, or an infinity."""
    form = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?inf(inity)?"
    if not re.fullmatch(form, text, re.IGNORECASE | re.ASCII):
        raise ValueError("argument couldn't be parsed into a number")
    return float(text)


def show_decimal(number: float) -> str:
    """The shortest text that is read back as the same number."""
    return repr(number).removesuffix(".0")


def integer(low: int, high: int) -> Kind:
    def parse(text: str, current: object) -> int:
        return _within(parse_integer(text), low, high)

    return Kind(parse, str, f"integer, {low} to {high}")


def clipped(low: int, high: int) -> Kind:
    """An integer that is clipped to the allowed range."""
    natural = integer(0, INT32_MAX)

    def parse(text: str, current: object) -> int:
        number: int = natural.parse(text, current)
        return min(max(number, low), high)

    return Kind(parse, str, f"integer, {low} to {high}")


UNITS = {
    "": 1, "b": 1, "k": 1000, "kb": 1024, "m": 1000**2, "mb": 1024**2, "g": 1000**3, "gb": 1024**3,
}  # fmt: skip


def parse_size(text: str) -> int:
    """Bytes of ``100``, ``64mb``, ``1k`` (1000), ``1kb`` (1024); ValueError for anything else."""
    found = re.fullmatch(r"([0-9]{1,127})([a-zA-Z]*)", text)  # Redis reads 127 digits, too
    if found is None or found[2].lower() not in UNITS:
        raise ValueError("argument must be a memory value")
    return int(found[1]) * UNITS[found[2].lower()]


def size(low: int, high: int = INT64_MAX) -> Kind:
    return Kind(lambda text, current: _within(parse_size(text), low, high), str, "size")


def _parse_size_or_share(text: str, current: object) -> str:
    if not text.endswith("%"):
        return str(_within(parse_size(text), 0, INT64_MAX))
    found = re.fullmatch(r"([0-9]{1,19})%", text)
    if found is None:
        raise ValueError("argument must be a memory or percent value")
    if int(found[1]) > 100:
        raise ValueError("percentage argument must be less or equal to 100")
    return text


SIZE_OR_SHARE = Kind(_parse_size_or_share, str, "size, or a percentage")


def one_of(*choices: str) -> Kind:
    def parse(text: str, current: object) -> str:
        if text.lower() not in choices:
            raise ValueError(
                f"argument(s) must be one of the following: {', '.join(choices)}"
                if len(choices) > 1
                else f"the only supported value is {choices[0]}"
            )
        return text.lower()

    return Kind(parse, str, " or ".join(choices))


def _parse_foreground(text: str, current: object) -> str:
    if text.lower() == "yes":
        raise ValueError(
            "the server stays in the foreground; let systemd run it (deploy/millstream.service)"
        )
    if text.lower() != "no":
        raise ValueError("the only supported value is no")
    return "no"


FOREGROUND = Kind(_parse_foreground, str, "no")


def _parse_percentiles(text: str, current: object) -> tuple[float, ...]:
    try:
        numbers = tuple(parse_decimal(word) for word in text.split())
    except ValueError:
        raise ValueError("Invalid latency-tracking-info-percentiles parameters") from None
    if not all(0 <= number <= 100 for number in numbers):
        raise ValueError(
            "latency-tracking-info-percentiles parameters should sit between [0.0,100.0]"
        )
    return numbers


PERCENTILES = Kind(
    _parse_percentiles,
    lambda numbers: " ".join(map(show_decimal, numbers)),
    "numbers from 0 to 100",
    many=True,
)


def _parse_scores(text: str, current: object) -> str:
    words = text.split()
    if len(words) != 3:
        raise ValueError("wrong number of arguments")
    try:
        scores = [_within(parse_integer(word), -2000, 2000) for word in words]
    except ValueError:
        raise ValueError(
            "Invalid oom-score-adj-values, elements must be between -2000 and 2000."
        ) from None
    return " ".join(map(str, scores))


SCORES = Kind(_parse_scores, str, "three numbers", many=True)

_SCORE_MODES = one_of("no", "yes", "relative", "absolute")


def _parse_score_mode(text: str, current: object) -> str:
    mode: str = _SCORE_MODES.parse(text, current)
    return "yes" if mode == "relative" else mode  # two names of one mode, as in Redis


SCORE_MODE = Kind(_parse_score_mode, str, _SCORE_MODES.name)

STOP_WORDS = ("save", "nosave", "now", "force")


def _parse_stop_words(text: str, current: object) -> str:
    words = text.lower().split()
    if not words or not set(words) <= {"default", *STOP_WORDS}:
        raise ValueError(
            f"argument(s) must be one of the following: default, {', '.join(STOP_WORDS)}"
        )
    if "save" in words and "nosave" in words:
        raise ValueError("shutdown options SAVE and NOSAVE can't be used simultaneously")
    return " ".join(word for word in STOP_WORDS if word in words) or "default"


STOPPING = Kind(_parse_stop_words, str, f"default, or some of {' '.join(STOP_WORDS)}", many=True)


def _parse_events(text: str, current: object) -> str:
    """The letters without A, each once, in the order of CONFIG GET; empty: no events."""
    if not set(text) <= {"A", *LETTERS}:
        raise ValueError(f"Invalid event class character. Use 'A{LETTERS}'.")
    wanted = set(text) | (set(OF_ALL) if "A" in text else set())
    return "".join(letter for letter in OF_ALL + NOT_OF_ALL if letter in wanted)


def _show_events(letters: str) -> str:
    return letters.replace(OF_ALL, "A")


EVENTS = Kind(_parse_events, _show_events, "letters")


def only(value: int) -> Kind:
    """A number that tools read and that has only one possible value in this server."""

    def parse(text: str, current: object) -> int:
        if parse_size(text) != value:
            raise ValueError(f"the only supported value is {value}")
        return value

    return Kind(parse, str, str(value))


TEXT = Kind(lambda text, current: text, str, "text")
# A text that no log may show, and that only the server should be able to read in a file.
SECRET = Kind(lambda text, current: text, str, "text")


def _parse_path(text: str, current: object) -> Path:
    if not text:
        raise ValueError("the path is empty; give a folder, for example data")
    return Path(text)


PATH = Kind(_parse_path, lambda value: str(Path(value).resolve()), "folder")


def _parse_addresses(text: str, current: object) -> tuple[str, ...]:
    addresses = tuple(text.split())
    if not addresses:
        raise ValueError("needs an address, for example 127.0.0.1; * means all")
    return addresses


ADDRESSES = Kind(_parse_addresses, " ".join, "addresses or names, * for all", many=True)

SAVE_POINTS_DEFAULT = "3600 1 300 100 60 10000"


def _parse_save(text: str, current: object) -> str:
    words = text.split()
    try:
        numbers = [parse_integer(word) for word in words]
    except ValueError:
        numbers = [-1]
    if len(numbers) % 2 or 0 in numbers[::2] or min(numbers, default=0) < 0 or (text and not words):
        raise ValueError("Invalid save parameters")
    return " ".join(map(str, numbers))


SAVE_POINTS = Kind(_parse_save, str, "pairs of seconds and changes", many=True)


class OutputLimit(NamedTuple):
    """A client is closed at `hard_bytes` of unsent output, or after `soft_s` seconds above
    `soft_bytes`; 0 is no limit."""

    hard_bytes: int
    soft_bytes: int
    soft_s: int


OutputLimits = dict[str, OutputLimit]
CLIENT_CLASSES = {"normal": "normal", "slave": "slave", "replica": "slave", "pubsub": "pubsub"}
OUTPUT_LIMITS = (
    ("normal", OutputLimit(0, 0, 0)),
    ("slave", OutputLimit(256 * MEGABYTE, 64 * MEGABYTE, 60)),
    ("pubsub", OutputLimit(32 * MEGABYTE, 8 * MEGABYTE, 60)),
)


def _parse_output_limits(text: str, current: OutputLimits) -> OutputLimits:
    words = text.split()
    if not words or len(words) % 4:
        raise ValueError("Wrong number of arguments in buffer limit configuration.")
    limits = dict(current)
    for at in range(0, len(words), 4):
        client_class = CLIENT_CLASSES.get(words[at].lower())
        if client_class is None:
            raise ValueError("Invalid client class specified in buffer limit configuration.")
        try:
            hard, soft = (min(parse_size(word), UINT64_MAX) for word in words[at + 1 : at + 3])
            soft_s = _within(parse_integer(words[at + 3]), 0, INT32_MAX)
            limits[client_class] = OutputLimit(hard, soft, soft_s)
        except ValueError:
            raise ValueError(
                "Error in hard, soft or soft_seconds setting in buffer limit configuration."
            ) from None
    return limits


LIMITS = Kind(
    _parse_output_limits,
    lambda limits: " ".join(
        f"{name} {limit.hard_bytes} {limit.soft_bytes} {limit.soft_s}"
        for name, limit in limits.items()
    ),
    "class, hard limit, soft limit, seconds",
    many=True,
    line_words=4,
)


class UserLimit(NamedTuple):
    """The most connections of a user, and the most memory that they may take; 0 is no limit."""

    connections: int
    memory_bytes: int


UserLimits = dict[str, UserLimit]
OTHER_USERS = "*"  # the limit of each user that has none of its own


def _parse_user_limits(text: str, current: UserLimits) -> UserLimits:
    words = text.split()
    if not words:
        return {}
    if len(words) % 3:
        raise ValueError("argument must be a user, a number of connections and a size of memory")
    limits = dict(current)
    for name, connections, memory in zip(words[::3], words[1::3], words[2::3], strict=True):
        limit = UserLimit(
            _within(parse_integer(connections), 0, INT32_MAX),
            _within(parse_size(memory), 0, INT64_MAX),
        )
        limits.pop(name, None)
        limits[name] = limit  # one without limits is kept: the limit of other users is not its own
    return limits


USER_LIMITS = Kind(
    _parse_user_limits,
    lambda limits: " ".join(
        f"{name} {limit.connections} {limit.memory_bytes}" for name, limit in limits.items()
    ),
    "user, connections, memory",
    many=True,
    line_words=3,
)


# A row of the table


class Directive:
    """One row of the table. It is an attribute of a class of directives, which gives it its name;
    `part` is the attribute of a configuration that has the object of this class, "" for the
    configuration itself. `apply` puts a value in force (server/config/apply); without it, the
    directive cannot be changed while the server runs."""

    __slots__ = (
        "_default", "apply", "attribute", "kind", "meaning", "name", "part", "section", "value_in"
    )  # fmt: skip

    def __init__(
        self,
        default: Any,
        kind: Kind,
        meaning: str,
        section: str,
        apply: Callable[[Any, Any], object] | None,
    ) -> None:
        self.attribute = self.name = self.part = ""
        self.value_in: Callable[[object], Any]  # the value in a configuration
        self.kind = kind
        self.meaning = meaning
        self.section = section
        self.apply = apply
        self._default = default

    def __set_name__(self, owner: type, attribute: str) -> None:
        self.attribute = attribute
        self.part = getattr(owner, "PART", "")
        prefix = getattr(owner, "PREFIX", "")
        self.name = f"{prefix}{attribute}".replace("_", "-")
        self.value_in = attrgetter(f"{self.part}.{attribute}" if self.part else attribute)

    @property
    def mutable(self) -> bool:
        return self.apply is not None

    def _owner(self, config: object) -> object:
        return getattr(config, self.part) if self.part else config

    def set_in(self, config: object, value: Any) -> None:
        setattr(self._owner(config), self.attribute, value)

    def initial_value(self) -> Any:
        """The default, for one configuration."""
        return dict(self._default) if isinstance(self._default, dict) else self._default


def directive(
    default: Any,
    kind: Kind,
    meaning: str,
    *,
    section: str,
    apply: Callable[[Any, Any], object] | None = None,
) -> Any:
    """A Directive in place of the value that the attribute has in a configuration."""
    return Directive(default, kind, meaning, section, apply)


REPLICAS = "Replicas"
COMPATIBILITY = "Accepted for compatibility"

# `directive` for the sections of docs/configuration.md that several classes or many rows have.
network = partial(directive, section="Network")
data = partial(directive, section="Data")
limits = partial(directive, section="Limits")
streams = partial(directive, section="Streams")
log = partial(directive, section="Log")
watching = partial(directive, section="Watching the server")
