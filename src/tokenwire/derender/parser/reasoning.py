"""Whether reasoning is on, and whether the prompt left it open.

The border it guards: the words of `chat_template_kwargs` and of a rendered prompt end here as one of three states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenwire.derender.parser.format import Format, ReasoningFormat
from tokenwire.derender.parser.options import ReasoningState


def thinking_enabled(reasoning: ReasoningFormat, kwargs: Mapping[str, Any]) -> bool:
    """Whether the template's settings let the model think, by the format's own rule."""
    thinking, enable = kwargs.get("thinking"), kwargs.get("enable_thinking")
    match reasoning.switch:
        case "":
            return True
        case "any_true":
            return bool(thinking) or bool(enable)
        case "any_true_or_unset":
            if kwargs.get("reasoning_effort") == "none":
                return False
            return True if thinking is None and enable is None else bool(thinking) or bool(enable)
        case "enable_thinking":
            return bool(kwargs.get("enable_thinking", True))
        case "effort":
            return kwargs.get("reasoning_effort", "no_think") not in ("no_think", None)


def reasoning_state_of_prompt(
    format: Format, prompt: str | list[str] | tuple[str, ...], kwargs: Mapping[str, Any] | None = None
) -> ReasoningState:
    """What a prompt (its text, or the end of it, or its tokens' texts) says about reasoning.

    `open` and `closed` are what its last reasoning marker says; `closed` also where the settings turn reasoning off or
    the format has none. `undecided` without any marker: then the format's own rule holds (`ReasoningFormat.starts`).
    """
    reasoning = format.reasoning
    if reasoning is None or not thinking_enabled(reasoning, kwargs or {}):
        return "closed"
    text = prompt if isinstance(prompt, str) else "".join(prompt)
    text = text[max(0, *(text.rfind(marker) for marker in reasoning.turn_starts), 0) :]
    opened = max((text.rfind(marker) for marker in reasoning.start), default=-1)
    closed = max((text.rfind(marker) for marker in reasoning.end), default=-1)
    if opened == closed:
        return "undecided"
    return "open" if opened > closed else "closed"
