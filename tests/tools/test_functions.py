"""Functions as tools: what a model is told of them, and how a call of it reaches them."""

import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NewType, Optional, TypedDict

import onegraph
import pytest
from onegraph import functions


class Unit(enum.Enum):
    METRIC = "metric"
    IMPERIAL = "imperial"


@dataclasses.dataclass
class Place:
    city: str
    zip: int | None = None
    near: list["Spot"] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Spot:
    name: str
    at: tuple[float, float]


class Options(TypedDict, total=False):
    quick: bool


Celsius = NewType("Celsius", float)


def weather(
    place: Place,
    days: int = 3,
    *,
    unit: Unit = Unit.METRIC,
    detail: Literal["low", "high"] = "low",
    above: Optional[Celsius] = None,  # noqa: UP045  the older spelling
    tags: Sequence[str] = (),
    extra: dict[str, float] | None = None,
    anything: Any = None,
    either: Annotated[int | str, "a number, or its name"] = 1,
    options: Options = {},  # noqa: B006
) -> list[Any]:
    """The weather of a place.

    In some detail.

    place: where,
        as near as known
    days (int): how many of them
    :param unit: of temperatures

    Returns:
        all that came in
    """
    return [place, days, unit, detail, above, tags, extra, anything, either, options]


def test_a_function_is_described_by_its_signature_and_docstring() -> None:
    spot = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "at": {
                "type": "array",
                "prefixItems": [{"type": "number"}, {"type": "number"}],
                "minItems": 2,
                "maxItems": 2,
            },
        },
        "required": ["name", "at"],
    }
    place = {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "zip": {"type": ["integer", "null"]},
            "near": {"type": "array", "items": spot},
        },
        "required": ["city"],
        "description": "where, as near as known",
    }
    unit = {"type": "string", "enum": ["metric", "imperial"], "description": "of temperatures"}
    numbers = {"type": "object", "additionalProperties": {"type": "number"}}
    properties = {
        "place": place,
        "days": {"type": "integer", "description": "how many of them", "default": 3},
        "unit": {**unit, "default": "metric"},
        "detail": {"type": "string", "enum": ["low", "high"], "default": "low"},
        "above": {"type": ["number", "null"], "default": None},
        "tags": {"type": "array", "items": {"type": "string"}, "default": []},
        "extra": {"anyOf": [numbers, {"type": "null"}], "default": None},
        "anything": {"default": None},
        "either": {
            "type": ["integer", "string"],
            "description": "a number, or its name",
            "default": 1,
        },
        "options": {
            "type": "object",
            "properties": {"quick": {"type": "boolean"}},
            "required": [],
            "default": {},
        },
    }
    assert functions.described(weather) == {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a place.\n\nIn some detail.",
            "parameters": {"type": "object", "properties": properties, "required": ["place"]},
        },
    }


def test_docstrings_of_other_habits_are_read() -> None:
    def google(city: str, days: int) -> None:
        """Weather.

        Args:
            city (str): where
            days: how many
                of them

        Returns:
            nothing: at all
        """

    def sphinx(city: str, days: int) -> None:
        """Weather.

        :param city: where
        :param int days: how many
            of them
        :return: nothing
        """

    def silent(city: str, days: int) -> None: ...

    for function in (google, sphinx):
        found = functions.described(function)["function"]
        said = {k: v.get("description") for k, v in found["parameters"]["properties"].items()}
        assert (found["description"], said) == (
            "Weather.",
            {"city": "where", "days": "how many of them"},
        )
    found = functions.described(silent)["function"]
    assert found["description"] == ""
    assert found["parameters"]["required"] == ["city", "days"]


def test_methods_are_described_without_their_object() -> None:
    class Box:
        def put(self, thing: str) -> str:
            return thing + "!"

    box = Box()
    assert list(functions.described(box.put)["function"]["parameters"]["properties"]) == ["thing"]
    assert functions.call(box.put, {"thing": "x"}) == "x!"


class Node:
    pass


@dataclasses.dataclass
class Tree:
    left: "Tree | None"


def bare(x) -> None: ...  # type: ignore[no-untyped-def]
def many(*x: int) -> None: ...
def rest(**x: int) -> None: ...
def ordered(x: int, /) -> None: ...
def node(x: Node) -> None: ...
def tree(x: Tree) -> None: ...
def keys(x: dict[int, str]) -> None: ...
def raw(x: bytes) -> None: ...
def unknown(x: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def empty(x: Callable[[], int]) -> None: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (bare, "tools[0] bare(x): needs a type annotation"),
        (many, "tools[0] many(x): models pass arguments by name"),
        (rest, "tools[0] rest(x): models pass arguments by name"),
        (ordered, "tools[0] ordered(x): models pass arguments by name"),
        (node, "tools[0] node(x): Node is not supported; use str, int"),
        (tree, "tools[0] tree(x).left: Tree is recursive"),
        (keys, "JSON keys are strings; use dict[str, ...]"),
        (raw, "tools[0] raw(x): bytes is not supported"),
        (unknown, "tools[0] unknown: its signature cannot be read: name 'Nowhere'"),
        (empty, "is not supported; use"),
        (lambda x: x, "tools[0]: <lambda> has no name"),
        (3, "tools[0] = 3: must be a function or a dict"),
        ({"type": "function"}, 'tools[0]: must have a "function" with a "name"'),
        ({"type": "web_search"}, "tools[0] type = 'web_search': must be"),
        ({"name": "f", "parameters": {1, 2}}, "tools[0]: is not JSON"),
    ],
)
def test_what_cannot_be_described_is_an_error_that_says_why(function: Any, said: str) -> None:
    with pytest.raises(onegraph.ArgumentError) as caught:
        functions.offered([function])
    assert said in str(caught.value)


def test_tools_of_one_name_are_refused_and_a_function_alone_too() -> None:
    with pytest.raises(onegraph.ArgumentError, match="2 of them have the name 'node'"):
        functions.offered([{"name": "node"}, {"name": "node"}])
    with pytest.raises(onegraph.ArgumentError, match="must be a list of functions"):
        functions.offered(weather)


def test_arguments_become_what_the_annotations_say() -> None:
    given = {
        "place": {"city": "Bern", "near": [{"name": "Bear Park", "at": [46, 7.4]}]},
        "days": 2.0,
        "unit": "imperial",
        "above": 5,
        "tags": ["a"],
        "extra": {"x": 1},
        "anything": {"k": [None]},
        "either": "one",
    }
    place, days, unit, detail, above, tags, extra, anything, either, options = functions.call(
        weather, given
    )
    assert place == Place("Bern", None, [Spot("Bear Park", (46.0, 7.4))])
    assert (days, type(days), unit, detail) == (2, int, Unit.IMPERIAL, "low")
    assert (above, type(above), tags, extra) == (5.0, float, ["a"], {"x": 1.0})
    assert (anything, either, options) == ({"k": [None]}, "one", {})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "weather: place is missing"),
        ({"place": {"city": "x"}, "when": 1}, "weather: has no parameter 'when'; it takes place"),
        ({"place": "Bern"}, "weather(place) = 'Bern': must be an object"),
        ({"place": {}}, "weather(place): Place lacks city"),
        ({"place": {"city": "x", "zap": 1}}, "weather(place): Place has no 'zap'"),
        ({"place": {"city": 1}}, "weather(place).city = 1: must be of type string"),
        ({"place": {"city": "x"}, "days": "2"}, "weather(days) = '2': must be of type integer"),
        ({"place": {"city": "x"}, "days": True}, "weather(days) = True: must be of type integer"),
        ({"place": {"city": "x"}, "unit": "K"}, "must be one of 'metric', 'imperial'"),
        ({"place": {"city": "x"}, "detail": "x"}, "must be one of 'low', 'high'"),
        ({"place": {"city": "x"}, "either": []}, "must be int or str"),
        ({"place": {"city": "x", "near": [{"name": "s", "at": [1]}]}}, "must be a list of 2"),
    ],
)
def test_arguments_that_do_not_fit_are_an_error(given: dict[str, Any], said: str) -> None:
    with pytest.raises(onegraph.ArgumentError) as caught:
        functions.call(weather, given)
    assert said in str(caught.value)


def test_results_become_text() -> None:
    assert functions.content("as it is") == "as it is"
    made = {"unit": Unit.METRIC, "at": Spot("x", (1.0, 2.0)), "of": {3}, "é": None}
    assert functions.content(made) == (
        '{"unit": "metric", "at": {"name": "x", "at": [1.0, 2.0]}, "of": [3], "é": null}'
    )
    with pytest.raises(onegraph.ArgumentError, match="result of a tool = a Node: cannot be JSON"):
        functions.content(Node())
