"""Codecs: the values of records as fields.

ms.writer("orders", "api").of(Order)       # each field of a dataclass, or of a pydantic model
ms.writer("orders", "api").of(Json(Order)) # one field with JSON
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar, cast, overload

import msgpack  # type: ignore[import-untyped]

from millstream.client.conversion import (
    UNKNOWN,
    Anything,
    Kind,
    ModelShape,
    Parts,
    Unfit,
    as_bytes,
    as_unfit,
    dumped,
    inside,
    is_model,
    json_text,
    json_value,
    kind_of,
    same,
    shown,
)
from millstream.client.core import argument_checks
from millstream.client.core.words import text
from millstream.client.errors import InvalidFields, MillstreamError
from millstream.client.records import Record

A = TypeVar("A")
Words = Mapping[str, str | bytes]


class InvalidRecord(MillstreamError, ValueError):
    """A record is not what the codec of its reader expects. It was read, and the next call returns
    the record after it.

    `shard` and `id` are those of the record, and `record` has its fields as they are. `field` is
    the field that is wrong, if one is: `address.street` for a part of one. `reason` says why.
    """

    def __init__(self, record: Record[Any], field: str | None, why: str) -> None:
        self.shard = record.shard
        self.id = record.id
        self.field = field
        self.reason = why if field is None else f"the field {field!r} {why}"
        self.record = record
        self._why = why
        super().__init__(f"the record {self.id} of {self.shard!r} is not valid: {self.reason}")

    def __reduce__(self) -> tuple[type[InvalidRecord], tuple[Record[Any], str | None, str]]:
        return type(self), (self.record, self.field, self._why)


class Codec(Protocol[A]):
    """Writes values as the fields of an entry, and reads them. Any object with these two methods is
    a codec. An exception of `decode` becomes an InvalidRecord; one of `encode` is raised, and
    nothing is written.

    >>> class Upper:
    ...     def encode(self, value: str) -> dict[str, str]:
    ...         return {"text": value.upper()}
    ...     def decode(self, record: Record) -> str:
    ...         return record["text"]
    >>> codec: Codec[str] = Upper()
    """

    def encode(self, value: A, /) -> Mapping[str, Any] | Iterable[tuple[str, Any]]: ...

    def decode(self, record: Record[Any], /) -> A: ...


class Raw:
    """Bytes in one field, as they are.

    >>> with ms.writer("raws", "w").of(Raw()) as writer:
    ...     entry_id = writer.append(bytes([0, 255]))
    >>> with ms.stream("raws", "earliest").of(Raw()) as stream:
    ...     stream.read(timeout=1).value
    b'\\x00\\xff'
    """

    def __init__(self, field: str = "data") -> None:
        self.field = text(argument_checks.key("field", field))

    def encode(self, value: bytes) -> Words:
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise Unfit(f"must be bytes, not {shown(value)}")
        return {self.field: bytes(value)}

    def decode(self, record: Record[Any]) -> bytes:
        return as_bytes(word_of(record, self.field))


class Whole(Generic[A]):
    """A whole value in one field."""

    def __init__(self, kind: Any, field: str) -> None:
        self.field = text(argument_checks.key("field", field))
        self._kind: Kind = Anything() if kind is None else kind_of(kind)

    def encode(self, value: A) -> Words:
        return {self.field: inside(self.field, self._pack, self._kind.write(value))}

    def decode(self, record: Record[Any]) -> A:
        plain = inside(self.field, self._unpack, word_of(record, self.field))
        value: A = self._kind.read(plain)
        return value

    def _pack(self, plain: Any) -> str | bytes:
        raise NotImplementedError

    def _unpack(self, word: str | bytes) -> Any:
        raise NotImplementedError


class Json(Whole[A]):
    """A value as JSON in one field. With a dataclass, a pydantic model or another type, it is
    checked and has this type; without one, it is what JSON has.

    >>> with ms.writer("clicks2", "w").of(Json()) as writer:
    ...     entry_id = writer.append({"page": "home", "at": [3, 4]})
    >>> with ms.stream("clicks2", "earliest").of(Json(dict[str, object])) as stream:
    ...     stream.read(timeout=1).value
    {'page': 'home', 'at': [3, 4]}
    """

    @overload
    def __init__(self: Json[Any], kind: None = None, field: str = ...) -> None: ...
    @overload
    def __init__(self, kind: type[A], field: str = ...) -> None: ...
    def __init__(self, kind: Any = None, field: str = "json") -> None:
        super().__init__(kind, field)

    def _pack(self, plain: Any) -> str:
        return json_text(plain)

    def _unpack(self, word: str | bytes) -> Any:
        return json_value(word)


class MsgPack(Whole[A]):
    """A value as MessagePack in one field. Its type is as for Json.

    >>> with ms.writer("clicks3", "w").of(MsgPack()) as writer:
    ...     entry_id = writer.append({"page": "home", "raw": b"\\xff"})
    >>> with ms.stream("clicks3", "earliest").of(MsgPack()) as stream:
    ...     stream.read(timeout=1).value
    {'page': 'home', 'raw': b'\\xff'}
    """

    @overload
    def __init__(self: MsgPack[Any], kind: None = None, field: str = ...) -> None: ...
    @overload
    def __init__(self, kind: type[A], field: str = ...) -> None: ...
    def __init__(self, kind: Any = None, field: str = "msgpack") -> None:
        super().__init__(kind, field)

    def _pack(self, plain: Any) -> bytes:
        try:
            packed: bytes = msgpack.packb(plain)
            if isinstance(self._kind, Anything):  # a key that is a tuple could not be read
                msgpack.unpackb(packed, strict_map_key=False)
        except Exception as error:
            raise Unfit(f"cannot be written as MessagePack: {error}") from None
        return packed

    def _unpack(self, word: str | bytes) -> Any:
        try:
            return msgpack.unpackb(as_bytes(word), strict_map_key=False)
        except Exception as error:
            raise Unfit(f"is not MessagePack: {error or type(error).__name__}") from None


class DataclassFields(Generic[A]):
    """Each field of a dataclass in a field of the entry: text, numbers and times as text, all else
    as JSON. None is left out."""

    def __init__(self, made: type[A]) -> None:
        self._parts = Parts(made)
        for part in self._parts.parts:  # a type that is not known is an error now
            assert part.kind

    def encode(self, value: A) -> Words:
        self._parts.check(value)
        found: dict[str, str | bytes] = {}
        for part in self._parts.parts:
            own = getattr(value, part.name)
            if own is None and part.default is None and part.scalar is not None:
                continue
            found[part.name] = inside(part.name, part.to_word, own)
        return found

    def decode(self, record: Record[Any]) -> A:
        words = words_of(record)
        values: dict[str, Any] = {}
        for part in self._parts.parts:
            word = words.get(part.name)
            if word is not None:
                values[part.name] = inside(part.name, part.from_word, word)
        made: A = self._parts.make(values)
        return made


class ModelFields(Generic[A]):
    """Each field of a pydantic model in a field of the entry, by its serialization name, as for a
    dataclass. Computed fields are not written."""

    def __init__(self, made: type[A]) -> None:
        if getattr(made, "__pydantic_root_model__", False):
            raise ValueError(
                f"{made.__name__} is a RootModel, which has no fields: use the codec "
                f"Json({made.__name__})"
            )
        self._made = cast("Any", made)
        self._shape = ModelShape(made)

    def encode(self, value: A) -> Words:
        made: Any = value
        if not isinstance(value, self._made):
            raise Unfit(f"must be of {self._made.__name__}, not {shown(value)}")
        parts, extra = self._shape.parts, made.model_extra or {}
        found: dict[str, str | bytes] = {}
        for name, plain in dumped(made).items():
            part = parts.get(name)
            if part is not None:
                if plain is not None or not part.leaves_none_out:
                    found[name] = inside(name, part.to_word, plain)
            elif name in extra:
                found[name] = inside(name, json_text, plain)
            elif type(value) is self._made:
                raise Unfit(f"is not a field of {self._made.__name__}", (name,))
        if extra and not same(dict(self._validated(found).model_extra or {}), dict(extra)):
            raise Unfit("has unknown fields with values that JSON does not keep")
        return found

    def decode(self, record: Record[Any]) -> A:
        made: A = self._validated(words_of(record))
        return made

    def _validated(self, words: Words) -> Any:
        found: dict[str, str] = {}
        names: dict[str, str] = {}
        for name, word in words.items():
            part = self._shape.by_name.get(name)
            if part is None and not self._shape.keeps_unknown:
                continue
            key = name if part is None else part.key
            if key in found and part is not None and name != part.written:
                continue
            names[key] = name
            found[key] = inside(name, UNKNOWN.to_json if part is None else part.to_json, word)
        for part in self._shape.parts.values():
            if part.none_if_missing:
                found.setdefault(part.key, "null")
        # As JSON: a strict model takes a time or a UUID as text from JSON alone.
        text = ",".join(f"{json.dumps(key)}:{plain}" for key, plain in found.items())
        more = {"by_alias": True, "by_name": True} if self._shape.needs_names else {}
        try:
            return self._made.model_validate_json("{" + text + "}", **more)
        except Exception as error:
            unfit = as_unfit(error)
            if unfit.path:
                unfit.path = (names.get(unfit.path[0], unfit.path[0]), *unfit.path[1:])
            raise unfit from error


def codec_of(kind: type[A] | Codec[A]) -> Codec[A]:
    """The codec for a dataclass or a pydantic model; a codec is its own."""
    if isinstance(kind, type):
        if is_model(kind):
            return ModelFields(kind)
        if dataclasses.is_dataclass(kind):
            return DataclassFields(kind)
    elif callable(getattr(kind, "encode", None)) and callable(getattr(kind, "decode", None)):
        return kind
    raise ValueError(
        f"{kind!r} is not a codec: use a dataclass, a pydantic model, Json(), MsgPack(), Raw(), or "
        "an object with encode() and decode()"
    )


def encoded(codec: Codec[Any], value: Any) -> Any:
    """The fields of a value. InvalidFields names the field that does not fit."""
    try:
        return codec.encode(value)
    except Unfit as error:
        path = ".".join(error.path)
        where = f"the field {path!r} of {shown(value)}" if path else f"the value {shown(value)}"
        raise InvalidFields(f"{where} {error}") from error.__cause__


def decoded(codec: Codec[Any], record: Record[Any]) -> Any:
    """The value of a record. InvalidRecord names the record and the field."""
    try:
        return codec.decode(record)
    except Unfit as error:
        raise InvalidRecord(record, ".".join(error.path) or None, str(error)) from error.__cause__
    except Exception as error:
        # A KeyError is a field that is missing, most of the time; its text is only the name.
        raise InvalidRecord(record, None, f"{type(error).__name__}: {error}") from error


def words_of(record: Record[Any]) -> dict[str, str | bytes]:
    """The fields by name, which is bytes on a connection that does not decode replies."""
    return {text(name): word for name, word in record.items()}


def word_of(record: Record[Any], name: str) -> str | bytes:
    for key in (name, name.encode("utf-8", "surrogateescape")):
        if key in record:
            word: str | bytes = record[key]
            return word
    raise Unfit("is missing", (name,))
