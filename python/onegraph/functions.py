"""Python functions as tools: their description as JSON schema, and calls of them."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import re
import types
import typing
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from onegraph import arguments
from onegraph.errors import ArgumentError

__all__ = [
    "MOST_TOOLS",
    "Offered",
    "call",
    "content",
    "described",
    "offered",
    "schema_of",
    "value_of",
]

SCALARS: Mapping[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    None: "null",
    type(None): "null",
}

#: Tools of one call. All of them stand in the prompt; models are trained with a few, and those who
#: sell answers take 128.
MOST_TOOLS = 512

#: Kinds of list: what they are in Python, and how they are called there.
LISTS: Mapping[Any, Callable[[Iterable[Any]], Any]] = {
    list: list,
    set: set,
    frozenset: frozenset,
    Sequence: list,
    Iterable: list,
    Collection: list,
}

DESCRIBABLE = (
    "str, int, float, bool, None, Any, Literal, Enum, dataclasses, TypedDict, list, tuple, set, "
    "dict with str keys, Optional and unions of these"
)


class Offered:
    """The tools of one call of `chat`."""

    def __init__(self, schemas: list[dict[str, Any]], functions: dict[str, Callable[..., Any]]):
        #: Names of tools whose arguments are to be held to their schema.
        self.strict = {
            schema["function"]["name"]
            for schema in schemas
            if schema["function"].pop("strict", None) is True
        }
        self.schemas = schemas
        #: Of the tools that are functions, by name.
        self.functions = functions
        self.json = json.dumps(schemas)


def offered(tools: Any) -> Offered:
    """Reads the argument `tools`: functions, and descriptions of functions.

    Raises `ArgumentError` that names the tool and what is wrong with it.
    """
    if tools is None:
        return Offered([], {})
    if callable(tools) or not arguments.is_sequence(tools):
        raise arguments.refused("tools", tools, "must be a list of functions or of dicts")
    if len(tools) > MOST_TOOLS:
        raise ArgumentError(
            f"tools: {len(tools)} of them; at most {MOST_TOOLS} are allowed: leave out those "
            "that the conversation does not need"
        )
    schemas, functions = [], {}
    for i, tool in enumerate(tools):
        name = f"tools[{i}]"
        if isinstance(tool, Mapping):
            schemas.append(_given(name, tool))
        elif callable(tool):
            schemas.append(described(tool, name))
            functions[schemas[-1]["function"]["name"]] = tool
        else:
            expected = 'must be a function or a dict such as {"type": "function", "function": ...}'
            raise arguments.refused(name, tool, expected)
    called = Counter(schema["function"]["name"] for schema in schemas)
    for each, times in called.items():
        if times > 1:
            raise ArgumentError(f"tools: {times} of them have the name {arguments.shown(each)}")
    return Offered(schemas, functions)


def _given(name: str, tool: Mapping[str, Any]) -> dict[str, Any]:
    """A description that is ready; that of the function alone will do."""
    found = dict(tool)
    if "function" not in found and "name" in found:
        found = {"type": "function", "function": found}
    kind = found.setdefault("type", "function")
    if kind != "function":
        raise arguments.refused(f"{name} type", kind, 'must be "function"')
    function = found.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ArgumentError(
            f'{name}: must have a "function" with a "name", as in {{"type": "function", '
            '"function": {"name": "f", "parameters": {...}}}'
        )
    # Templates ask for both without asking whether they are there.
    empty = {"type": "object", "properties": {}}
    found["function"] = {"description": "", "parameters": empty, **function}
    try:
        json.dumps(found)
    except (TypeError, ValueError, RecursionError) as e:
        raise ArgumentError(f"{name}: is not JSON: {e}") from e
    return found


def described(function: Callable[..., Any], name: str = "tool") -> dict[str, Any]:
    """The description of a function: its name, what its docstring says of it and of its
    parameters, and a JSON schema of these from their annotations.

    Raises `ArgumentError` where it has a parameter that cannot be described, or no annotation.
    """
    called = getattr(function, "__name__", None)
    if not isinstance(called, str) or not called.isidentifier():
        raise ArgumentError(
            f"{name}: {called or type(function).__name__} has no name; "
            "pass a function defined with def"
        )
    where = f"{name} {called}"
    try:
        signature = inspect.signature(function)
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, ValueError) as e:
        raise ArgumentError(f"{where}: its signature cannot be read: {e}") from e
    summary, said = _documented(inspect.getdoc(function) or "", signature.parameters)
    properties: dict[str, Any] = {}
    required = []
    for each in signature.parameters.values():
        here = f"{where}({each.name})"
        if each.kind is not each.POSITIONAL_OR_KEYWORD and each.kind is not each.KEYWORD_ONLY:
            raise ArgumentError(
                f"{here}: models pass arguments by name: *args, **kwargs and positional-only "
                "parameters are not supported"
            )
        if each.name not in hints:
            raise ArgumentError(f"{here}: needs a type annotation, such as str")
        schema = _schema(hints[each.name], here, ())
        if each.name in said:
            schema["description"] = said[each.name]
        if each.default is each.empty:
            required.append(each.name)
        elif (default := _plain(each.default)) is not Ellipsis:
            schema["default"] = default
        properties[each.name] = schema
    parameters = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": called, "description": summary, "parameters": parameters},
    }


def _plain(default: Any) -> Any:
    """A default as JSON has it; `...` where it has not."""
    if isinstance(default, enum.Enum):
        default = default.value
    try:
        return json.loads(json.dumps(default, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return ...


#: `name: text`, `name (type): text`, `:param type name: text`.
PARAMETER = re.compile(r"\s*(?::param\s+(?:[\w\[\], |.]+\s)?)?(\w+)(?:\s*\([^)]*\))?\s*:\s*(\S.*)")
SECTION = re.compile(r"\s*(Args|Arguments|Parameters|Returns?|Raises|Yields|Examples?)\s*:\s*")
FIELD = re.compile(r"\s*:(returns?|rtype|raises|type)\b")


def _documented(doc: str, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """What a docstring says of its function, and of each parameter that it names at the beginning
    of a line."""
    summary: list[str] = []
    said: dict[str, str] = {}
    current: str | None = None  # whose description may go on
    dropped = False  # within what is for who calls it
    for line in doc.splitlines():
        found = PARAMETER.fullmatch(line)
        if found and found[1] in names:
            current = found[1]
            said[current] = found[2].strip()
        elif SECTION.fullmatch(line) or FIELD.match(line):
            current, dropped = None, True
        elif current and line.strip() and line[0].isspace():
            said[current] += " " + line.strip()
        elif not dropped:
            current = None
            summary.append(line)
    return "\n".join(summary).strip(), said


def schema_of(kind: Any, where: str) -> dict[str, Any]:
    """The JSON schema of a type.

    Raises `ArgumentError` that names `where` for a type that has none.
    """
    try:
        hash(kind)
    except TypeError:
        raise _indescribable(type(kind), where) from None
    return _schema(kind, where, ())


def _schema(kind: Any, where: str, around: tuple[Any, ...]) -> dict[str, Any]:
    """The JSON schema of a type."""
    kind = _resolved(kind)
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        schema = _schema(args[0], where, around)
        texts = [each for each in args[1:] if isinstance(each, str)]
        return {**schema, "description": " ".join(texts)} if texts else schema
    if kind is Any or kind is object:
        return {}
    if kind in SCALARS:
        return {"type": SCALARS[kind]}
    if origin is Literal:
        return _enumerated(args, where)
    if origin is Union or origin is types.UnionType:
        return _either([_schema(each, where, around) for each in args])
    listed = kind if origin is None else origin
    if listed is tuple and args and args[-1] is not Ellipsis:
        items = [_schema(each, where, around) for each in args]
        most = len(items)
        return {"type": "array", "prefixItems": items, "minItems": most, "maxItems": most}
    if listed in LISTS or listed is tuple:
        each = _schema(args[0], where, around) if args else {}
        schema = {"type": "array", "items": each} if each else {"type": "array"}
        return {**schema, "uniqueItems": True} if listed in (set, frozenset) else schema
    if listed in (dict, Mapping, typing.MutableMapping):
        if args and _resolved(args[0]) is not str:
            raise ArgumentError(f"{where}: {kind}: JSON keys are strings; use dict[str, ...]")
        of = _schema(args[1], where, around) if args else {}
        return {"type": "object", "additionalProperties": of} if of else {"type": "object"}
    if isinstance(kind, type):
        return _class_schema(kind, where, around)
    raise _indescribable(kind, where)


def _resolved(kind: Any) -> Any:
    """A type behind its other names."""
    while True:
        if isinstance(kind, typing.NewType):
            kind = kind.__supertype__
        elif (value := getattr(kind, "__value__", None)) is not None and not isinstance(kind, type):
            kind = value  # of the statement `type`
        else:
            return kind


def _indescribable(kind: Any, where: str) -> ArgumentError:
    shown = getattr(kind, "__name__", None) or str(kind)
    return ArgumentError(
        f"{where}: {shown} is not supported; use {DESCRIBABLE}; or pass the whole tool as a dict"
    )


def _enumerated(values: Sequence[Any], where: str) -> dict[str, Any]:
    kinds = {SCALARS.get(type(value)) for value in values}
    if None in kinds or not values:
        raise ArgumentError(
            f"{where}: values of an enumeration must be str, int, float, bool or None, and some"
        )
    schema: dict[str, Any] = {"enum": list(values)}
    return {"type": kinds.pop(), **schema} if len(kinds) == 1 else schema


def _either(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    if any(not schema for schema in schemas):
        return {}
    simple = [schema["type"] for schema in schemas if schema.keys() == {"type"}]
    return {"type": simple} if len(simple) == len(schemas) else {"anyOf": schemas}


def _class_schema(kind: type, where: str, around: tuple[Any, ...]) -> dict[str, Any]:
    if issubclass(kind, enum.Enum):
        return _enumerated([each.value for each in kind], where)
    if kind in around:
        raise ArgumentError(
            f'{where}: {kind.__name__} is recursive; pass the whole tool as a dict with "$defs"'
        )
    made = getattr(kind, "model_json_schema", None)
    if callable(made):  # of Pydantic
        found: dict[str, Any] = made()
        return found
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        fields = [field for field in dataclasses.fields(kind) if field.init]
        required = [field.name for field in fields if not _has_default(field)]
        types_of = {field.name: hints[field.name] for field in fields}
    elif typing.is_typeddict(kind):
        types_of = typing.get_type_hints(kind)
        required = sorted(getattr(kind, "__required_keys__", ()))
    else:
        raise _indescribable(kind, where)
    inside = (*around, kind)
    properties = {each: _schema(of, f"{where}.{each}", inside) for each, of in types_of.items()}
    return {"type": "object", "properties": properties, "required": required}


def _has_default(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


def call(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Calls a function with arguments as JSON has them; enumerations and dataclasses are made of
    what their annotations say.

    Raises `ArgumentError` where an argument is missing, not one of the function's, or no value of
    its type.
    """
    name = getattr(function, "__name__", "tool")
    parameters = inspect.signature(function).parameters
    hints = typing.get_type_hints(function, include_extras=True)
    for each in given:
        if each not in parameters:
            takes = ", ".join(parameters) or "nothing"
            raise ArgumentError(f"{name}: has no parameter {each!r}; it takes {takes}")
    for parameter in parameters.values():
        if parameter.default is parameter.empty and parameter.name not in given:
            raise ArgumentError(f"{name}: {parameter.name} is missing")
    made = {
        each: value_of(hints.get(each, Any), value, f"{name}({each})")
        for each, value in given.items()
    }
    return function(**made)


def value_of(kind: Any, value: Any, where: str) -> Any:
    """A value of a type, of what JSON has for it.

    Raises `ArgumentError` that names `where` for one that does not fit.
    """
    kind = _resolved(kind)
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return value_of(args[0], value, where)
    if kind is Any or kind is object:
        return value
    if origin is Union or origin is types.UnionType:
        return _one_of(args, value, where)
    if origin is Literal:
        if any(value == each and type(value) is type(each) for each in args):
            return value
        raise _unfit(where, value, f"one of {', '.join(map(repr, args))}")
    if kind in SCALARS:
        return _scalar(kind, value, where)
    listed = kind if origin is None else origin
    if listed in LISTS or listed is tuple:
        return _listed(listed, args, value, where)
    if listed in (dict, Mapping, typing.MutableMapping):
        of = args[1] if args else Any
        items = _mapping(value, where).items()
        return {key: value_of(of, each, f"{where}[{key!r}]") for key, each in items}
    return _made(kind, value, where)


def _unfit(where: str, value: Any, expected: str) -> ArgumentError:
    return arguments.refused(where, value, f"must be {expected}")


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _unfit(where, value, "an object")
    return value


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    # JSON does not tell 2.0 from 2, and models write either.
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    fits = value is None if kind in (None, type(None)) else type(value) is kind
    if not fits:
        raise _unfit(where, value, f"of type {SCALARS[kind]}")
    return value


def _one_of(kinds: Sequence[Any], value: Any, where: str) -> Any:
    # What fits without a change goes first: 2 is an int where float is allowed too.
    if type(value) in kinds:
        return value
    for kind in kinds:
        try:
            return value_of(kind, value, where)
        except ArgumentError:
            continue
    names = " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)
    raise _unfit(where, value, names)


def _listed(kind: Any, args: Sequence[Any], value: Any, where: str) -> Any:
    if not isinstance(value, list):
        raise _unfit(where, value, "a list")
    if kind is tuple and args and args[-1] is not Ellipsis:
        if len(value) != len(args):
            raise _unfit(where, value, f"a list of {len(args)}")
        each = [
            value_of(of, v, f"{where}[{i}]")
            for i, (of, v) in enumerate(zip(args, value, strict=True))
        ]
        return tuple(each)
    of = args[0] if args else Any
    made = [value_of(of, each, f"{where}[{i}]") for i, each in enumerate(value)]
    return tuple(made) if kind is tuple else LISTS[kind](made)


def _made(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(kind, type):
        return value
    if issubclass(kind, enum.Enum):
        try:
            return kind(value)
        except ValueError as e:
            allowed = ", ".join(repr(each.value) for each in kind)
            raise _unfit(where, value, f"one of {allowed}") from e
    validate = getattr(kind, "model_validate", None)
    if callable(validate):
        try:
            return validate(value)
        except ValueError as e:
            raise _unfit(where, value, f"a {kind.__name__}: {e}") from e
    if not dataclasses.is_dataclass(kind) and not typing.is_typeddict(kind):
        return value
    fields = _mapping(value, where)
    hints = typing.get_type_hints(kind)
    if dataclasses.is_dataclass(kind):
        of = {field.name: field for field in dataclasses.fields(kind) if field.init}
        required = {name for name, field in of.items() if not _has_default(field)}
        known: Collection[str] = of
    else:
        required, known = set(getattr(kind, "__required_keys__", ())), hints
    for name in fields:
        if name not in known:
            raise ArgumentError(f"{where}: {kind.__name__} has no {name!r}")
    if missing := sorted(required - fields.keys()):
        raise ArgumentError(f"{where}: {kind.__name__} lacks {', '.join(missing)}")
    values = {name: value_of(hints[name], each, f"{where}.{name}") for name, each in fields.items()}
    return kind(**values)


def content(value: Any) -> str:
    """What a tool gave back, as the text of a message: a text as it is, anything else as JSON.

    Raises `ArgumentError` where it has no JSON.
    """
    if isinstance(value, str):
        return arguments.text("result of a tool", value)
    try:
        return json.dumps(value, ensure_ascii=False, default=_jsonable)
    except (TypeError, ValueError, RecursionError) as e:
        raise ArgumentError(
            f"result of a tool = a {type(value).__name__}: cannot be JSON ({e}); return a str"
        ) from e


def _jsonable(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return sorted(value)
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not one of its types")
