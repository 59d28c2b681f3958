"""What a request says that changes how its output is read, in the shape the machine asks for.

The border it guards: past here there are no OpenAI request dicts. Tool definitions are read once into `ToolTable`,
the tool choice into one of four words, and the prompt into one fact: whether it left reasoning open, closed or neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tokenwire.derender.parser.format import CallIds

ReasoningState = Literal["open", "closed", "undecided"]
ChoiceKind = Literal["none", "auto", "required", "named"]


class ToolTable:
    """Names and parameter schemas of the functions a request offers."""

    __slots__ = ("_properties",)

    def __init__(self, tools: Sequence[Mapping[str, Any]] | None) -> None:
        self._properties: dict[str, Mapping[str, Any]] = {}
        for tool in tools or ():
            function = tool.get("function", tool)
            if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
                continue
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
            self._properties[function["name"]] = properties if isinstance(properties, Mapping) else {}

    def __len__(self) -> int:
        return len(self._properties)

    def __contains__(self, name: str) -> bool:
        return name in self._properties

    def schema(self, function: str, parameter: str) -> Any:
        """JSON schema of one parameter; null when the function or the parameter is not known."""
        return self._properties.get(function, {}).get(parameter)

    def parameters(self, function: str) -> Mapping[str, Any]:
        return self._properties.get(function, {})


@dataclass(slots=True)
class ParserOptions:
    """One request's settings. Defaults are those of a chat request that offers no tools."""

    tools: Sequence[Mapping[str, Any]] | None = None
    """OpenAI tool objects, `{"type": "function", "function": {...}}`, or the bare function objects."""
    tool_choice: str | Mapping[str, Any] | None = None
    """`none`, `auto`, `required`, the name of a function, or OpenAI's named object; null is `auto` with tools."""
    parallel_tool_calls: bool | None = True
    include_reasoning: bool = True
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    history_tool_call_cnt: int = 0
    """Calls already in the conversation; seeds the sequential ids of Kimi-type models."""
    prompt_reasoning: ReasoningState = "undecided"
    """What the prompt says; ask `reasoning_state_of_prompt`."""
    call_ids: CallIds | None = None
    """How calls without an id of their own are named, where the model's type says it; null leaves it to the format."""
    forced: Literal["json", "native"] | None = None
    """How required and named calls come: as plain JSON, where a grammar made them so, or as the model writes its
    calls; null leaves it to the format."""
    eos_texts: Sequence[str] = ()
    """Further texts of this model's end-of-turn tokens; a format knows its own."""

    def choice(self) -> tuple[ChoiceKind, str]:
        """The tool choice as a word, and the function's name if one is forced."""
        choice = self.tool_choice
        if isinstance(choice, Mapping):
            function = choice.get("function", choice)
            return "named", str(function.get("name", ""))
        if not self.tools or choice == "none":
            return "none", ""
        if choice is None or choice == "auto":
            return "auto", ""
        return ("required", "") if choice == "required" else ("named", choice)
