"""`@tool`: a step that a model can call. The model sees its schema, without the sandbox parameter."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar, overload

import pydantic

from ramify.compiler.plan import Effect
from ramify.decorators import EffectName, Step, step
from ramify.runtime.durations import Duration
from ramify.runtime.errors import BadArguments
from ramify.runtime.execution.step_call import StepDef
from ramify.runtime.user_code.call_sites import call_site

P = ParamSpec("P")
R = TypeVar("R")


class Tool(Step[P, R], Generic[P, R]):
    """A function under `@tool`: a step with the schema that a model needs to call it."""

    def __init__(self, function: Callable[..., Any], definition: StepDef, declared: Effect | None) -> None:
        super().__init__(function, definition, declared)
        self.description = inspect.getdoc(function) or ""
        self._arguments = _model(function, definition)

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def schema(self) -> dict[str, Any]:
        """The schema in the form that OpenAI-compatible servers take in `tools`."""
        parameters = self._arguments.model_json_schema()
        parameters.pop("title", None)
        for field in parameters.get("properties", {}).values():
            field.pop("title", None)
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }

    def call(self, arguments: str | Mapping[str, Any]) -> Awaitable[R]:
        """Start the step with the arguments that a model gave: JSON text, or the parsed object.

        Raises `BadArguments`, worded for the model, if they do not fit the schema; nothing has started then.
        """
        try:
            if isinstance(arguments, str):
                made = self._arguments.model_validate_json(arguments)
            else:
                made = self._arguments.model_validate(dict(arguments))
        except pydantic.ValidationError as error:
            wrong = "; ".join(
                f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}" for one in error.errors()
            )
            raise BadArguments(f"tool {self.name} was called with arguments that do not fit: {wrong}") from None
        given = {name: getattr(made, name) for name in type(made).model_fields}
        return self.begin(call_site(), (), given)


def _model(function: Callable[..., Any], definition: StepDef) -> type[pydantic.BaseModel]:
    """The parameters without the sandbox. Raises `TypeError` for a parameter that a model cannot give by name."""
    hints = typing.get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name == definition.sandbox_parameter:
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) or name not in hints:
            raise TypeError(
                f"tool {definition.name!r}: parameter {name!r} has no annotation, or cannot be given by name: "
                "a model could not know what to give"
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[name] = (hints[name], default)
    return pydantic.create_model(definition.name, __config__=pydantic.ConfigDict(extra="forbid"), **fields)


@overload
def tool(function: Callable[..., Any], /) -> Tool[..., Any]: ...
@overload
def tool(
    *,
    effect: EffectName | None = None,
    reuse: bool = False,
    retry: int = 0,
    timeout: Duration | None = None,
    name: str | None = None,
) -> Callable[[Callable[..., Any]], Tool[..., Any]]: ...
def tool(function: Callable[..., Any] | None = None, /, **declared: Any) -> Any:
    """Make a function a tool: a step (with the options of `step`) and a schema, from its annotations and docstring.

    Raises `TypeError` if there is no docstring: a model chooses a tool by its description.
    """

    def decorate(function: Callable[..., Any]) -> Tool[..., Any]:
        if not inspect.getdoc(function):
            raise TypeError(f"tool {function.__qualname__!r} has no docstring: a model needs one to choose it")
        made = step(**declared)(function)
        return Tool(function, made.definition, made.__ramify_step__.effect)

    return decorate if function is None else decorate(function)
