"""Values of Python types as the text of a field, and as JSON.

A type has a *kind*: how its values are written and read. `kind_of` finds it for an annotation.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import json
import types
import typing
import uuid
from collections import abc
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Literal, Protocol, get_args, get_origin

from millstream.client.core.words import text

MISSING: Any = dataclasses.MISSING


class Unfit(Exception):
    """A value that does not fit its type. `path` are the names of the fields on the way to it."""

    def __init__(self, why: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(why)
        self.path = path


class Kind(Protocol):
    """A way to write and read the values of a type."""

    def write(self, value: Any) -> Any:
        """The value as JSON has it. Unfit if it has another type."""

    def read(self, plain: Any) -> Any:
        """The value of what JSON has."""


class Scalar:
    """A type whose values are one word: text that needs no JSON."""

    def __init__(
        self,
        name: str,
        accepts: Callable[[Any], bool],
        from_text: Callable[[str], Any],
        to_text: Callable[[Any], str] = str,
        native: bool = False,
    ) -> None:
        """`native`: JSON has such values, too."""
        self.name = name
        self._accepts = accepts
        self._from_text = from_text
        self._to_text = to_text
        self._native = native

    def to_word(self, value: Any) -> str | bytes:
        """The value as a field has it."""
        if not self._accepts(value):
            raise Unfit(f"must be {self.name}, not {shown(value)}")
        try:
            return self._to_text(value)
        except Exception as error:  # an int of more digits than Python converts
            raise Unfit(f"cannot be written as text: {error}") from None

    def from_word(self, word: str | bytes) -> Any:
        """The value of a field."""
        try:
            return self._from_text(text(word))
        except Exception:
            raise Unfit(f"must be {self.name}, not {shown(word)}") from None

    def write(self, value: Any) -> Any:
        word = self.to_word(value)
        return value if self._native else word

    def read(self, plain: Any) -> Any:
        if self._native and self._accepts(plain):
            return plain
        if isinstance(plain, str) and not self._native:
            return self.from_word(plain)
        raise Unfit(f"must be {self.name}, not {shown(plain)}")


class Bytes(Scalar):
    """Bytes: a field has them as they are, JSON in base64."""

    def __init__(self) -> None:
        super().__init__("bytes", lambda value: isinstance(value, bytes), str)

    def to_word(self, value: Any) -> str | bytes:
        if not isinstance(value, bytes):
            raise Unfit(f"must be bytes, not {shown(value)}")
        return value

    def from_word(self, word: str | bytes) -> Any:
        return as_bytes(word)

    def write(self, value: Any) -> Any:
        return base64.b64encode(self.from_word(self.to_word(value))).decode()

    def read(self, plain: Any) -> Any:
        if isinstance(plain, bytes):  # of msgpack
            return plain
        try:
            return base64.b64decode(plain, validate=True)
        except (TypeError, ValueError):
            raise Unfit(f"must be bytes in base64, not {shown(plain)}") from None


def is_(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds) and not isinstance(value, bool)


MICROSECOND = datetime.timedelta(microseconds=1)
EXACT = decimal.Context(prec=40)
SECONDS_MAX = 10**14


def seconds_of(value: datetime.timedelta) -> str:
    """The seconds, exactly: a float has too few digits for a long time."""
    micros = value // MICROSECOND
    seconds, rest = divmod(abs(micros), 10**6)
    fraction = f"{rest:06}".rstrip("0") or "0"
    return f"{'-' if micros < 0 else ''}{seconds}.{fraction}"


def timedelta_of(text: str) -> datetime.timedelta:
    seconds = decimal.Decimal(text)
    if not abs(seconds) < SECONDS_MAX:  # before int(), which makes all digits of an exponent
        raise OverflowError(text)
    return datetime.timedelta(microseconds=int(EXACT.scaleb(seconds, 6).to_integral_value()))


BOOLS = {"true": True, "false": False, "True": True, "False": False, "1": True, "0": False}
SCALARS: dict[Any, Scalar] = {
    str: Scalar("text", is_(str), str, native=True),
    bytes: Bytes(),
    bool: Scalar(
        "true or false",
        lambda value: isinstance(value, bool),
        BOOLS.__getitem__,
        lambda value: "true" if value else "false",
        native=True,
    ),
    int: Scalar("a whole number", is_(int), int, native=True),
    float: Scalar("a number", is_(int, float), float, repr, native=True),
    decimal.Decimal: Scalar("a decimal number", is_(decimal.Decimal), decimal.Decimal),
    datetime.datetime: Scalar(
        "a time in ISO format",
        is_(datetime.datetime),
        datetime.datetime.fromisoformat,
        datetime.datetime.isoformat,
    ),
    datetime.date: Scalar(
        "a date in ISO format",
        lambda value: type(value) is datetime.date,
        datetime.date.fromisoformat,
        datetime.date.isoformat,
    ),
    datetime.time: Scalar(
        "a time of the day in ISO format",
        is_(datetime.time),
        datetime.time.fromisoformat,
        datetime.time.isoformat,
    ),
    datetime.timedelta: Scalar(
        "a number of seconds",
        is_(datetime.timedelta),
        lambda text: timedelta_of(text),
        lambda value: seconds_of(value),
    ),
    uuid.UUID: Scalar("a UUID", is_(uuid.UUID), uuid.UUID),
}


def choice(values: Mapping[str, Any]) -> Scalar:
    """The members of an Enum, or the values of a Literal, by their text."""
    # True equals 1, and is another value of a Literal.
    texts = {(isinstance(value, bool), value): text for text, value in values.items()}

    def mark(value: Any) -> tuple[bool, Any]:
        return isinstance(value, bool), value

    def known(value: Any) -> bool:
        try:
            return mark(value) in texts
        except TypeError:  # it has no hash
            return False

    name = "one of " + ", ".join(values)
    return Scalar(name, known, values.__getitem__, lambda value: texts[mark(value)])


class Anything:
    """Any: what JSON has."""

    def write(self, value: Any) -> Any:
        return value

    def read(self, plain: Any) -> Any:
        return plain


class Nothing:
    """None."""

    def write(self, value: Any) -> Any:
        if value is not None:
            raise Unfit(f"must be None, not {shown(value)}")

    def read(self, plain: Any) -> Any:
        self.write(plain)


class Either:
    """A union: the first of its types that takes the value. A reader tries the types in the same
    order, so a value is written only if it comes back as the same value."""

    def __init__(self, kinds: list[Kind]) -> None:
        self._kinds = kinds
        self._is_ambiguous = sum(not isinstance(kind, Nothing) for kind in kinds) > 1

    def write(self, value: Any) -> Any:
        return self._first(lambda kind: self._written(kind, value))

    def _written(self, kind: Kind, value: Any) -> Any:
        plain = kind.write(value)
        if self._is_ambiguous:
            again = self.read(plain)
            if not same(again, value):
                raise Unfit(
                    f"would come back as {shown(again)}, not {shown(value)}: put the types of the "
                    "union in another order, or use one type"
                )
        return plain

    def read(self, plain: Any) -> Any:
        return self._first(lambda kind: kind.read(plain))

    def _first(self, do: Callable[[Kind], Any]) -> Any:
        whys = []
        for kind in self._kinds:
            try:
                return do(kind)
            except Unfit as error:
                whys.append(str(error))
        raise Unfit(", or ".join(whys))


class Items:
    """A list, a set, or a tuple of any length."""

    def __init__(self, make: Callable[[Any], Any], of: type, kind: Kind) -> None:
        self._make, self._of, self._kind = make, of, kind

    def write(self, value: Any) -> Any:
        if not isinstance(value, self._of) or isinstance(value, (str, bytes)):
            raise Unfit(f"must be a {self._of.__name__}, not {shown(value)}")
        items: Any = value
        return [inside(str(n), self._kind.write, item) for n, item in enumerate(items)]

    def read(self, plain: Any) -> Any:
        if not isinstance(plain, (list, tuple)):
            raise Unfit(f"must be a list, not {shown(plain)}")
        return self._make(inside(str(n), self._kind.read, item) for n, item in enumerate(plain))


class Places:
    """A tuple with a type for each of its values."""

    def __init__(self, kinds: list[Kind]) -> None:
        self._kinds = kinds

    def write(self, value: Any) -> Any:
        return self._each(value, tuple, lambda kind: kind.write)

    def read(self, plain: Any) -> Any:
        return tuple(self._each(plain, (list, tuple), lambda kind: kind.read))

    def _each(self, value: Any, of: Any, do: Callable[[Kind], Any]) -> list[Any]:
        if not isinstance(value, of) or len(value) != len(self._kinds):
            raise Unfit(f"must be {len(self._kinds)} values, not {shown(value)}")
        pairs = enumerate(zip(self._kinds, value, strict=True))
        return [inside(str(n), do(kind), item) for n, (kind, item) in pairs]


class Map:
    """A dict. Its keys are text."""

    def __init__(self, key: Scalar, kind: Kind) -> None:
        self._key, self._kind = key, kind

    def write(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise Unfit(f"must be a mapping, not {shown(value)}")
        words = ((self._key.to_word(key), item) for key, item in value.items())
        return {key: inside(str(key), self._kind.write, item) for key, item in words}

    def read(self, plain: Any) -> Any:
        if not isinstance(plain, Mapping):
            raise Unfit(f"must be a map, not {shown(plain)}")
        return {
            self._key.from_word(key): inside(str(key), self._kind.read, item)
            for key, item in plain.items()
        }


class Part(typing.NamedTuple):
    """A field of a dataclass."""

    name: str
    kind: Kind
    default: Any
    """None if it has none and may be None; MISSING if it has to be there."""
    scalar: Scalar | None
    """For a field of an entry that has it without JSON, which leaves None out."""

    def to_word(self, value: Any) -> str | bytes:
        if self.scalar is not None:
            return self.scalar.to_word(value)
        return json_text(self.kind.write(value))

    def from_word(self, word: str | bytes) -> Any:
        if self.scalar is not None:
            return self.scalar.from_word(word)
        return self.kind.read(json_value(word))


class Parts:
    """A dataclass."""

    def __init__(self, made: Any) -> None:
        self.made = made

    @cached_property
    def parts(self) -> list[Part]:
        hints = typing.get_type_hints(self.made)  # later: a dataclass may refer to itself
        return [part_of(f, hints[f.name]) for f in dataclasses.fields(self.made) if f.init]

    def write(self, value: Any) -> Any:
        self.check(value)
        return {
            part.name: inside(part.name, part.kind.write, getattr(value, part.name))
            for part in self.parts
        }

    def check(self, value: Any) -> None:
        if not isinstance(value, self.made):
            raise Unfit(f"must be of {self.made.__name__}, not {shown(value)}")

    def read(self, plain: Any) -> Any:
        if not isinstance(plain, Mapping):
            raise Unfit(f"must be a map with the fields of {self.made.__name__}")
        return self.make(
            {
                part.name: inside(part.name, part.kind.read, plain[part.name])
                for part in self.parts
                if part.name in plain
            }
        )

    def make(self, values: dict[str, Any]) -> Any:
        """The value with these fields and the defaults of others."""
        for part in self.parts:
            if part.name not in values:
                if part.default is MISSING:
                    raise Unfit("is missing", (part.name,))
                if part.default is None:
                    values[part.name] = None
        try:
            return self.made(**values)
        except Exception as error:
            raise as_unfit(error) from error


DEFAULT: Any = object()
"""The default of a field that its dataclass knows."""


def part_of(field: dataclasses.Field[Any], hint: Any) -> Part:
    kind, optional = kind_of(hint), may_be_none(hint)
    default: Any = MISSING
    if field.default is not MISSING or field.default_factory is not MISSING:
        default = None if field.default is None else DEFAULT
    elif optional:
        default = None
    scalar = scalar_of(hint)
    # A None that is left out comes back as the default, so the default has to be None.
    if optional and default is not None:
        scalar = None
    return Part(field.name, kind, default, scalar)


class Model:
    """A pydantic model."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def write(self, value: Any) -> Any:
        if not isinstance(value, self._made):
            raise Unfit(f"must be of {self._made.__name__}, not {shown(value)}")
        try:
            return value.model_dump(mode="json", by_alias=True, round_trip=True)
        except Exception as error:
            raise as_unfit(error) from error

    def read(self, plain: Any) -> Any:
        try:
            text = json.dumps(plain)
        except (TypeError, ValueError):  # bytes of MessagePack
            text = None
        try:
            if text is None:
                return self._made.model_validate(plain)
            # A strict model takes a time or a UUID as text from JSON alone.
            return self._made.model_validate_json(text)
        except Exception as error:
            raise as_unfit(error) from error


def as_unfit(error: Exception) -> Unfit:
    """An error of a user's class, or of pydantic, which names the field."""
    errors = getattr(error, "errors", None)
    if callable(errors):
        try:
            first = errors()[0]
            return Unfit(str(first["msg"]), tuple(map(str, first["loc"])))
        except Exception:  # another class with such a method
            pass
    return Unfit(f"{type(error).__name__}: {error}")


def inside(name: str, do: Callable[[Any], Any], value: Any) -> Any:
    """The value, written or read; an error names the field."""
    try:
        return do(value)
    except Unfit as error:
        raise Unfit(str(error), (name, *error.path)) from error.__cause__


def same(one: Any, other: Any) -> bool:
    """The values are equal and have the same types, also inside: 1, 1.0 and True are not."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        keys = {key: key for key in other}
        return len(one) == len(other) and all(
            key in keys and same(key, keys[key]) and same(item, other[key])
            for key, item in one.items()
        )
    if isinstance(one, (set, frozenset)):
        typed = [{(type(item), item) for item in items} for items in (one, other)]
        return typed[0] == typed[1]
    if dataclasses.is_dataclass(one):
        names = [f.name for f in dataclasses.fields(one) if f.init]
        return all(same(getattr(one, name), getattr(other, name)) for name in names)
    if one != one:  # a NaN
        return bool(other != other)
    return bool(one == other)


def as_bytes(word: str | bytes) -> bytes:
    return word if isinstance(word, bytes) else word.encode("utf-8", "surrogateescape")


def json_value(word: str | bytes) -> Any:
    try:
        return json.loads(word)
    except ValueError as error:
        raise Unfit(f"is not JSON: {error}") from None


def json_text(plain: Any) -> str:
    try:
        text = json.dumps(plain, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        text.encode()  # a lone surrogate has no UTF-8
        return text
    except (TypeError, ValueError) as error:
        raise Unfit(f"cannot be written as JSON: {error}") from None


def shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # an int of more digits than Python converts
        text = f"a value of {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


# ---------------------------------------------------------------- the kind of a type

UNIONS = (typing.Union, types.UnionType)
SEQUENCES: dict[Any, tuple[Callable[[Any], Any], type]] = {
    list: (list, list),
    set: (set, set),
    frozenset: (frozenset, frozenset),
    abc.Sequence: (list, abc.Sequence),
    abc.Iterable: (list, abc.Iterable),
    abc.Set: (set, abc.Set),
}
MAPS = (dict, abc.Mapping, abc.MutableMapping)
_CLASSES: dict[Any, Kind] = {}


def is_model(made: Any) -> bool:
    return isinstance(made, type) and hasattr(made, "model_validate")


def kind_of(hint: Any) -> Kind:
    """The kind of an annotation. ValueError if there is none."""
    scalar = scalar_of(hint) if not may_be_none(hint) else None
    if scalar is not None:
        return scalar
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return Anything()
    if hint is None or hint is type(None):
        return Nothing()
    if origin is typing.Annotated:
        return kind_of(args[0])
    if hasattr(hint, "__supertype__"):  # a NewType
        return kind_of(hint.__supertype__)
    if origin in UNIONS:
        return Either([kind_of(arg) for arg in args])
    if origin is tuple or hint is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return Items(tuple, tuple, kind_of(args[0]))
        return Places([kind_of(arg) for arg in args]) if args else Items(tuple, tuple, Anything())
    if (origin or hint) in SEQUENCES:
        make, of = SEQUENCES[origin or hint]
        return Items(make, of, kind_of(args[0]) if args else Anything())
    if (origin or hint) in MAPS:
        return map_of(args)
    return class_kind(hint)


def map_of(args: tuple[Any, ...]) -> Kind:
    key = scalar_of(args[0] if args else str)
    if key is None or isinstance(key, Bytes):
        raise ValueError(f"the keys of a mapping must be text or numbers, not {args[0]!r}")
    return Map(key, kind_of(args[1]) if args else Anything())


def class_kind(made: Any) -> Kind:
    if made not in _CLASSES:
        if dataclasses.is_dataclass(made):
            _CLASSES[made] = Parts(made)
        elif is_model(made):
            _CLASSES[made] = Model(made)
        else:
            raise ValueError(
                f"the type {made!r} is not known: use a dataclass, a pydantic model or a codec of "
                "your own"
            )
    return _CLASSES[made]


def scalar_of(hint: Any) -> Scalar | None:
    """The kind of a type that a field has without JSON; None for other types. A type that may be
    None counts as the type alone."""
    hint = bare(hint)
    if get_origin(hint) is Literal:
        texts = {str(value): value for value in get_args(hint)}
        if len(texts) < len(get_args(hint)):
            raise ValueError(f"values of {hint} have the same text: use values that differ")
        return choice(texts)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return choice({str(member.value): member for member in hint})
    return SCALARS.get(hint) if isinstance(hint, type) else None


def bare(hint: Any) -> Any:
    """The type without Annotated, NewType and None."""
    if get_origin(hint) is typing.Annotated:
        return bare(get_args(hint)[0])
    if hasattr(hint, "__supertype__"):
        return bare(hint.__supertype__)
    if get_origin(hint) in UNIONS:
        others = [arg for arg in get_args(hint) if arg is not type(None)]
        return bare(others[0]) if len(others) == 1 else hint
    return hint


def may_be_none(hint: Any) -> bool:
    if get_origin(hint) is typing.Annotated:
        return may_be_none(get_args(hint)[0])
    return get_origin(hint) in UNIONS and type(None) in get_args(hint)


# ---------------------------------------------------------------- the fields of a pydantic model

NATIVE = (int, float, bool)
TIMES = (datetime.datetime, datetime.date, datetime.time, datetime.timedelta)
NOT_FINITE = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}


class ModelPart(typing.NamedTuple):
    """A field of a pydantic model."""

    written: str
    """Its name in an entry, which is the one of its serialization."""
    key: str
    """Its name for the validation."""
    others: tuple[str, ...]
    """Other names that its validation takes."""
    is_text: bool
    """The entry has its text without JSON."""
    is_lenient: bool
    """Text that is not JSON is a value, too: the model may convert it."""
    leaves_none_out: bool
    none_if_missing: bool

    def to_word(self, plain: Any) -> str:
        if self.is_text:
            if not isinstance(plain, str):
                raise Unfit(f"must be text after its serialization, not {shown(plain)}")
            return plain
        if self.is_lenient and isinstance(plain, float) and repr(plain) in NOT_FINITE:
            return repr(plain)
        return json_text(plain)

    def to_json(self, word: str | bytes) -> str:
        """The value of a field of an entry as JSON."""
        try:
            text = word.encode().decode() if isinstance(word, str) else word.decode()
        except UnicodeError:
            raise Unfit(f"is not UTF-8: {shown(word)}") from None
        if self.is_text:
            return json.dumps(text)
        try:
            json_value(text)
        except Unfit:
            if self.is_lenient:
                return NOT_FINITE.get(text) or json.dumps(text)
            raise
        return text


UNKNOWN = ModelPart("", "", (), False, True, False, False)
"""A field that a model with extra="allow" keeps."""


class ModelShape:
    """The fields of a pydantic model by their names in an entry."""

    def __init__(self, made: Any) -> None:
        self._made = made
        self.config: dict[str, Any] = made.model_config
        self.keeps_unknown = self.config.get("extra") == "allow"

    @cached_property
    def parts(self) -> dict[str, ModelPart]:
        made = self._made  # later: a model may refer to a class that is defined after it
        if not getattr(made, "__pydantic_complete__", True):
            made.model_rebuild()
        found = (self._part(name, info) for name, info in made.model_fields.items())
        return {part.written: part for part in found}

    @cached_property
    def by_name(self) -> dict[str, ModelPart]:
        """The fields by the names that are read: an entry may come from another program."""
        others = {name: part for part in self.parts.values() for name in part.others}
        return {**others, **self.parts}

    @cached_property
    def needs_names(self) -> bool:
        """An alias that is a path is no name of a field: pydantic gets the attribute's name."""
        fields = self._made.model_fields.values()
        return any(info.validation_alias and not aliases_of(info) for info in fields)

    def _part(self, name: str, info: Any) -> ModelPart:
        aliases = aliases_of(info)
        if self.config.get("validate_by_alias", True) is False or not aliases:
            key = name
        else:
            key = aliases[0]
        others = {*aliases, key}
        if self.config.get("populate_by_name") or self.config.get("validate_by_name"):
            others.add(name)
        is_text, is_lenient = self._form(name, info)
        optional = may_be_none(info.annotation)
        # A None that is left out comes back as the default, so the default has to be None.
        required = info.is_required()
        left_out = optional and (
            required or (info.default_factory is None and info.default is None)
        )
        if is_text and optional and not left_out:  # JSON has both None and the text "null"
            is_text, is_lenient = False, True
        left_out = left_out and (is_text or is_lenient)
        return ModelPart(
            info.serialization_alias or info.alias or name,
            key,
            tuple(others),
            is_text,
            is_lenient,
            left_out,
            left_out and required,
        )

    def _form(self, name: str, info: Any) -> tuple[bool, bool]:
        """Its value is text without JSON, or JSON that may be other text."""
        hint = bare(info.annotation)
        if self._has_serializer(name, info):
            return False, False
        if get_origin(hint) is Literal:
            values = [v.value if isinstance(v, enum.Enum) else v for v in get_args(hint)]
        elif scalar_of(hint) is None:
            return False, False
        elif issubclass(hint, enum.Enum):
            values = [member.value for member in hint]
        else:
            is_number = hint in NATIVE or (hint in TIMES and self._has_times_as_numbers)
            return not is_number, is_number
        is_text = all(isinstance(value, str) for value in values)
        return is_text, not is_text

    @property
    def _has_times_as_numbers(self) -> bool:
        names = ("ser_json_timedelta", "ser_json_temporal")
        return any(self.config.get(name, "iso8601") != "iso8601" for name in names)

    def _has_serializer(self, name: str, info: Any) -> bool:
        own = self._made.__pydantic_decorators__.field_serializers.values()
        if any(name in one.info.fields or "*" in one.info.fields for one in own):
            return True
        marks = (*info.metadata, *getattr(info.annotation, "__metadata__", ()))
        return any(type(mark).__name__ in ("PlainSerializer", "WrapSerializer") for mark in marks)


def aliases_of(info: Any) -> list[str]:
    """The names that the validation of a field takes, without paths."""
    alias = info.validation_alias
    choices = getattr(alias, "choices", [alias])
    return [choice for choice in choices if isinstance(choice, str)]


def dumped(made: Any) -> dict[str, Any]:
    """The fields of a model as JSON has them. Unfit names the field that has no JSON."""
    try:
        found: dict[str, Any] = made.model_dump(mode="json", by_alias=True, round_trip=True)
        return found
    except Exception as error:
        for name, info in type(made).model_fields.items():
            try:
                made.model_dump(mode="json", include={name}, round_trip=True)
            except Exception as own:
                written = info.serialization_alias or info.alias or name
                raise Unfit(f"cannot be written as JSON: {own}", (written,)) from own
        raise as_unfit(error) from error
