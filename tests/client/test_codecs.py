"""Values as fields, without a server."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NewType
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    computed_field,
    create_model,
)

from millstream.client import ID, InvalidFields, InvalidRecord, Json, MsgPack, Raw, Record
from millstream.client.codecs import codec_of, decoded, encoded
from millstream.client.records import with_value

KEY = UUID(int=5)
Cents = NewType("Cents", int)


class Size(Enum):
    SMALL = "small"
    LARGE = 2


@dataclass
class Address:
    street: str
    zip: int | None = None


@dataclass
class Order:
    item: str
    count: int = 1
    price: Decimal = Decimal("1.50")
    weight: float = 0.1
    paid: bool = False
    at: datetime = datetime(2026, 11, 20, 10, 26, tzinfo=UTC)
    day: date = date(2026, 11, 20)
    opens: time = time(8, 30)
    takes: timedelta = timedelta(hours=2, microseconds=5)
    key: UUID = KEY
    image: bytes = b"\xff\x00"
    size: Size = Size.LARGE
    color: Literal["red", "blue"] = "red"
    cents: Cents = Cents(5)
    note: str | None = None
    hint: str | None = "none given"
    tags: list[str] = field(default_factory=list)
    places: tuple[int, str] = (1, "a")
    seats: set[int] = field(default_factory=set)
    numbers: dict[int, float] = field(default_factory=dict)
    address: Address | None = None
    either: int | str = 5
    named: Annotated[str, "a name"] = "n"
    anything: Any = None


FULL = Order(
    "tea",
    count=-3,
    paid=True,
    size=Size.SMALL,
    note="",
    hint=None,
    tags=["a", "ü"],
    seats={1, 2},
    numbers={1: 0.5},
    address=Address("Main St", 5),
    either="5",
    anything=[{"a": None}],
)


def record_of(fields: Any, decodes: bool = True) -> Record[Any]:
    """The record of an entry, as a connection that decodes replies reads it, or one that does
    not."""
    pairs = fields.items() if isinstance(fields, dict) else fields
    words = [as_read(word, decodes) for pair in pairs for word in pair]
    return Record(ID(5, 1), "orders", ["5.1", *words])


def as_read(word: Any, decodes: bool) -> Any:
    data = word if isinstance(word, bytes) else str(word).encode()
    return data.decode("utf-8", "surrogateescape") if decodes else data


CODECS: list[Any] = [Order, Json(Order), MsgPack(Order)]


@pytest.mark.parametrize("decodes", [True, False])
@pytest.mark.parametrize("value", [Order("salt"), FULL])
@pytest.mark.parametrize("kind", CODECS)
def test_a_dataclass_comes_back(kind: Any, value: Order, decodes: bool) -> None:
    codec = codec_of(kind)
    assert decoded(codec, record_of(encoded(codec, value), decodes)) == value


def test_fields_of_a_dataclass_are_readable_text() -> None:
    fields = encoded(codec_of(Order), FULL)
    assert fields["count"] == "-3"
    assert fields["price"] == "1.50"
    assert fields["paid"] == "true"
    assert fields["at"] == "2026-11-20T10:26:00+00:00"
    assert fields["image"] == b"\xff\x00"
    assert fields["size"] == "small"
    assert json.loads(fields["tags"]) == ["a", "ü"]
    assert json.loads(fields["address"]) == {"street": "Main St", "zip": 5}
    assert fields["hint"] == "null"  # left out, it would come back as its default
    assert "note" not in encoded(codec_of(Order), Order("salt"))


class Customer(BaseModel):
    name: str
    age: int = Field(ge=0)
    since: datetime | None = None
    tags: list[str] = []
    address: dict[str, int] = {}
    mail: str = Field(default="", alias="e-mail")


@pytest.mark.parametrize("kind", [Customer, Json(Customer), MsgPack(Customer)])
@pytest.mark.parametrize("more", [{}, {"since": datetime(2026, 1, 1), "tags": ["5"]}])
def test_a_pydantic_model_comes_back(kind: Any, more: dict[str, Any]) -> None:
    codec = codec_of(kind)
    value = Customer.model_validate({"name": "5", "age": 7, "e-mail": "a@b", **more})
    assert decoded(codec, record_of(encoded(codec, value))) == value


class Level(IntEnum):
    LOW = 1


class Forbids(BaseModel):
    model_config = ConfigDict(extra="forbid")
    x: int = 1

    @computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2 * self.x


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    n: int
    f: float
    at: datetime
    key: UUID
    takes: timedelta
    seats: set[int]
    note: str | None


class Allows(BaseModel):
    model_config = ConfigDict(extra="allow")
    x: int = 1


ALIASES: Any = Field(serialization_alias="y", validation_alias=AliasChoices("y", "x"))
WRITTEN: Any = Field(serialization_alias="y")
PATH: Any = Field(serialization_alias="y", validation_alias=AliasPath("a", 0))
LONG = timedelta(days=400_000, microseconds=1)
STRICT: dict[str, Any] = {"at": datetime(2026, 1, 1), "key": KEY, "takes": LONG, "seats": {1}}


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        (int | None, 5, None),
        (int | None, 5, 7),
        (str | None, "d", None),
        (str | None, "d", "null"),
        (str | None, "d", "5"),
        (int | None, ..., None),
        (str | None, ..., "null"),
        (str | None, None, "5"),
        (Literal[1, 2], ..., 2),
        (Literal["1", 1], ..., 1),
        (Literal["1", 1], ..., "1"),
        (Literal["a", "5"], ..., "5"),
        (Level, ..., Level.LOW),
        (Size, ..., Size.SMALL),
        (Size, ..., Size.LARGE),
        (int, Field(strict=True), 5),
        (float, ..., float("inf")),
        (str, ALIASES, "abc"),
        (str, WRITTEN, "5"),
        (int, WRITTEN, 5),
        (str, PATH, "abc"),
        (timedelta, ..., LONG),
        (Decimal, ..., Decimal("1.50")),
        (bytes, ..., b"ab"),
        (list[str] | None, ["a"], None),
    ],
)
def test_a_field_of_a_model_comes_back(kind: Any, default: Any, value: Any) -> None:
    made = create_model("Made", x=(kind, default))
    codec: Any = codec_of(made)
    given = made.model_construct(x=value)
    for decodes in (True, False):
        again = decoded(codec, record_of(encoded(codec, given), decodes))
        assert (type(again.x), again.x) == (type(value), value)


@pytest.mark.parametrize(
    "value",
    [
        Forbids(x=3),
        Strict(n=1, f=float("inf"), note=None, **STRICT),
        Strict(n=1, f=0.5, note="5", **STRICT),
        Allows.model_validate({"x": 2, "more": "text", "five": "5", "list": [1, {"a": None}]}),
    ],
)
def test_a_configured_model_comes_back(value: BaseModel) -> None:
    codec: Any = codec_of(type(value))
    assert decoded(codec, record_of(encoded(codec, value))) == value


@pytest.mark.parametrize("value", [Forbids(x=3), Strict(n=1, f=0.5, note="5", **STRICT)])
@pytest.mark.parametrize("codec", [Json, MsgPack])
def test_a_configured_model_in_one_field_comes_back(codec: Any, value: BaseModel) -> None:
    whole: Any = codec(type(value))
    assert decoded(whole, record_of(encoded(whole, value))) == value


def test_a_model_ignores_fields_that_it_does_not_have() -> None:
    record = record_of({"x": "3", "traceparent": "00-ab"})
    assert decoded(codec_of(Forbids), record) == Forbids(x=3)
    assert decoded(codec_of(Allows), record).model_extra == {"traceparent": "00-ab"}


def test_a_root_model_is_refused() -> None:
    with pytest.raises(ValueError, match="is a RootModel, which has no fields"):
        codec_of(RootModel[list[int]])


class Loose(BaseModel):
    n: int | None = 5
    s: str | None = "d"
    t: str
    f: float
    b: bool | None
    takes: timedelta


TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(
    st.builds(
        Loose,
        n=st.none() | st.integers(),
        s=st.none() | TEXT,
        t=TEXT,
        f=st.floats(allow_nan=False),
        b=st.none() | st.booleans(),
        takes=st.timedeltas(),
    )
)
def test_any_values_of_a_model_come_back(value: Loose) -> None:
    codec: Any = codec_of(Loose)
    assert decoded(codec, record_of(encoded(codec, value))) == value


@dataclass
class Cat:
    name: str


@dataclass
class Dog:
    name: str
    age: int = 0


@pytest.mark.parametrize(
    ("kind", "value", "fits"),
    [
        (str | bytes, "ab", True),
        (str | bytes, b"ab", False),
        (str | datetime, datetime(2026, 1, 1), False),
        (datetime | str, datetime(2026, 1, 1), True),
        (datetime | str, "2026-01-01", False),
        (datetime | date, date(2026, 1, 1), False),
        (date | datetime, datetime(2026, 1, 1), True),
        (UUID | str, str(KEY), False),
        (UUID | str, "tea", True),
        (Cat | Dog, Dog("rex", 3), False),
        (Dog | Cat, Dog("rex", 3), True),
        (tuple[int, ...] | list[int], [1], False),
        (tuple[int, ...] | list[int], (1,), True),
        (int | float | None, 1.0, True),
        (Literal[1, True], 1, True),
        (Literal[1, True], True, True),
    ],
)
@pytest.mark.parametrize("codec", [Json, MsgPack])
def test_a_union_keeps_a_value_or_refuses_it(codec: Any, kind: Any, value: Any, fits: bool) -> None:
    codec = codec(kind)
    if fits:
        again = decoded(codec, record_of(encoded(codec, value)))
        assert (type(again), again) == (type(value), value)
    else:
        with pytest.raises(InvalidFields, match="would come back as"):
            encoded(codec, value)


@dataclass
class Numbers:
    n: int = 0
    takes: timedelta = timedelta(0)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Numbers, Numbers(10**5000)),
        (Allows, Allows(x=10**5000)),
        (create_model("Blob", x=(bytes, ...)), {"x": b"\xff"}),
    ],
)
def test_a_value_without_text_names_its_field(kind: Any, value: Any) -> None:
    made = kind(**value) if isinstance(value, dict) else value
    with pytest.raises(InvalidFields, match=r"the field '[nx]' of .*cannot be written as"):
        encoded(codec_of(kind), made)


@given(st.timedeltas())
def test_a_time_span_is_exact(takes: timedelta) -> None:
    codec = codec_of(Numbers)
    assert decoded(codec, record_of(encoded(codec, Numbers(takes=takes)))).takes == takes


def test_a_number_of_seconds_has_a_limit() -> None:
    with pytest.raises(InvalidRecord, match="must be a number of seconds"):
        decoded(codec_of(Numbers), record_of({"takes": "1e999999"}))


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: st.lists(inner) | st.dictionaries(st.text("ab"), inner),
        max_leaves=5,
    )
)
@pytest.mark.parametrize("codec", [Json(), MsgPack()])
def test_what_json_has_comes_back(codec: Any, value: Any) -> None:
    assert decoded(codec, record_of(encoded(codec, value))) == value


@given(
    st.dictionaries(st.integers(-5, 2**64 - 1) | st.binary() | st.text("ab") | st.none(), st.none())
)
def test_keys_that_message_pack_has_come_back(value: Any) -> None:
    assert decoded(MsgPack(), record_of(encoded(MsgPack(), value))) == value


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (Json(), {"a": "\ud800"}),
        (Json(), {"a": b"x"}),
        (Json(), float("nan")),
        (MsgPack(), {"a": "\ud800"}),
        (MsgPack(), {(1, 2): "x"}),
        (MsgPack(), 2**64),
    ],
)
def test_a_value_that_cannot_be_read_is_not_written(codec: Any, value: Any) -> None:
    with pytest.raises(InvalidFields, match="cannot be written as"):
        encoded(codec, value)


@given(st.binary())
def test_raw_bytes_come_back(data: bytes) -> None:
    for decodes in (True, False):
        assert decoded(Raw(), record_of(encoded(Raw(), data), decodes)) == data


@pytest.mark.parametrize(
    ("fields", "name", "why"),
    [
        ({"count": "5"}, "item", "is missing"),
        ({"item": "tea", "count": "x"}, "count", "must be a whole number, not 'x'"),
        ({"item": "tea", "paid": "maybe"}, "paid", "must be true or false, not 'maybe'"),
        ({"item": "tea", "color": "green"}, "color", "must be one of red, blue, not 'green'"),
        ({"item": "tea", "tags": "x"}, "tags", "is not JSON"),
        ({"item": "tea", "tags": "[1]"}, "tags.0", "must be text, not 1"),
        ({"item": "tea", "tags": '"x"'}, "tags", "must be a list, not 'x'"),
        ({"item": "tea", "address": '{"zip":5}'}, "address", "is missing"),
        ({"item": "tea", "places": "[1]"}, "places", r"must be 2 values, not \[1\]"),
        ({"item": "tea", "numbers": '{"x":1}'}, "numbers", "must be a whole number, not 'x'"),
    ],
)
def test_an_error_names_the_record_and_the_field(fields: Any, name: str, why: str) -> None:
    with pytest.raises(InvalidRecord, match=rf"^the record 5\.1 of 'orders' .*{why}") as caught:
        decoded(codec_of(Order), record_of(fields))
    assert caught.value.field is not None
    assert caught.value.field.startswith(name)
    assert dict(caught.value.record) == fields
    assert "shard='orders'" in repr(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.field, str(again)) == (caught.value.field, str(caught.value))


@pytest.mark.parametrize("codec", [Json(), Json(Order), MsgPack(), Raw(), MsgPack(Order)])
def test_a_record_without_the_field_is_refused(codec: Any) -> None:
    with pytest.raises(InvalidRecord, match=r"the field .* is missing"):
        decoded(codec, record_of({"other": "x"}))


@pytest.mark.parametrize("codec", [Json(), MsgPack()])
def test_a_text_that_is_cut_off_is_refused(codec: Any) -> None:
    [(name, word)] = encoded(codec, {"a": "b"}).items()
    with pytest.raises(InvalidRecord, match=f"the field '{name}' is not"):
        decoded(codec, record_of({name: word[:-1]}))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (Order("tea", count="x"), "the field 'count' of Order"),  # type: ignore[arg-type]
        (Order("tea", count=True), "the field 'count' of Order"),
        (Order(None), "the field 'item' of Order"),  # type: ignore[arg-type]
        (Order("tea", tags=[1]), "the field 'tags.0' of Order"),  # type: ignore[list-item]
        (Order("tea", anything=object()), "the field 'anything' of Order"),
        ({"item": "tea"}, "must be of Order"),
    ],
)
def test_a_value_that_does_not_fit_is_not_written(value: Any, why: str) -> None:
    with pytest.raises(InvalidFields, match=why):
        encoded(codec_of(Order), value)


def test_an_error_of_pydantic_names_the_field() -> None:
    with pytest.raises(InvalidRecord, match="the field 'age' Input should be greater") as caught:
        decoded(codec_of(Customer), record_of({"name": "ann", "age": "-5"}))
    assert caught.value.field == "age"


def test_an_error_of_the_users_class_is_the_cause() -> None:
    @dataclass
    class Even:
        n: int

        def __post_init__(self) -> None:
            if self.n % 2:
                raise ArithmeticError("odd")

    with pytest.raises(InvalidRecord, match="ArithmeticError: odd") as caught:
        decoded(codec_of(Even), record_of({"n": "3"}))
    assert isinstance(caught.value.__cause__, ArithmeticError)


def test_unknown_fields_are_ignored_missing_ones_have_defaults() -> None:
    record = record_of({"item": "tea", "more": "x"})
    assert decoded(codec_of(Order), record) == Order("tea")


@dataclass
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)


def test_a_dataclass_may_refer_to_itself() -> None:
    value = Tree("a", [Tree("b", [Tree("c")])])
    assert decoded(codec_of(Tree), record_of(encoded(codec_of(Tree), value))) == value


@dataclass
class Strange:
    thing: complex


@pytest.mark.parametrize("kind", [Strange, int, 5, "json", None, object(), dict])
def test_what_is_no_codec_is_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match="codec"):
        codec_of(kind)


def test_a_record_with_a_value_is_a_record() -> None:
    plain = record_of({"item": "tea"})
    with pytest.raises(AttributeError, match="codec"):
        _ = plain.value
    made = with_value(plain, Order("tea"))
    assert made == plain
    assert dict(made) == dict(plain)
    assert repr(made).startswith("Record(orders 5.1 Order(item='tea'")
    again = pickle.loads(pickle.dumps(made))
    assert (again, again.value) == (made, made.value)
