"""OpenAI's responses input as a chat request. Stateless: whatever refers to a stored response is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from tokenwire.errors import InvalidRequestError
from tokenwire.wire import codec
from tokenwire.wire.chat import ChatCompletionRequest, ChatMessage, ChatTool, JsonSchemaFormat, ResponseFormat
from tokenwire.wire.generate import NamedFunction, NamedToolChoice, ToolChoice
from tokenwire.wire.responses import InputItem, ResponsesRequest, TextFormat

CUSTOM_INPUT = "input"
"""A custom tool's free text travels as this one argument."""
OPEN_STATUSES = ("in_progress", "incomplete")


def responses_to_chat(request: ResponsesRequest) -> ChatCompletionRequest:
    """Raises `InvalidRequestError` for what needs stored state, and for items and tools of unknown kinds."""
    _check(request)
    continues = _continues(request.input)
    tools = _tools(request.tools)
    return ChatCompletionRequest(
        model=request.model,
        messages=_messages(request),
        max_completion_tokens=request.max_output_tokens,
        tools=tools,
        tool_choice=_choice(request.tool_choice) if tools else UNSET,
        parallel_tool_calls=request.parallel_tool_calls,
        reasoning_effort=request.reasoning.effort if request.reasoning is not None else None,
        include_reasoning=request.include_reasoning,
        response_format=_format(request.text.format) if request.text and request.text.format else None,
        structured_outputs=request.structured_outputs,
        logprobs=request.wants_logprobs,
        top_logprobs=request.top_logprobs if request.wants_logprobs else 0,
        truncate_prompt_tokens=-1 if request.truncation != "disabled" else None,
        add_generation_prompt=not continues,
        continue_final_message=continues,
        **{name: getattr(request, name) for name in SAME},
    )


SAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "logit_bias",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "stream",
    "chat_template_kwargs",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "mm_payload",
    "return_mm_kwargs",
    "priority",
    "request_id",
    "session_id",
    "cache_salt",
    "watermarking",
    "vllm_xargs",
    "kv_transfer_params",
    "ec_transfer_params",
    "user",
)
"""Fields of the same name and meaning in both requests."""


def _check(request: ResponsesRequest) -> None:
    if request.previous_response_id is not None:
        raise InvalidRequestError(
            "previous_response_id is not supported: this server stores no responses. Send the whole input.",
            param="previous_response_id",
        )
    if request.previous_input_messages:
        raise InvalidRequestError(
            "previous_input_messages is not supported: send earlier turns as input items.",
            param="previous_input_messages",
        )
    if request.prompt is not None:
        raise InvalidRequestError("prompt template is not supported", param="prompt")
    if request.structured_outputs is not None and request.text is not None and request.text.format is not None:
        raise InvalidRequestError("Cannot specify both structured_outputs and text.format", param="structured_outputs")


def _continues(given: str | list[InputItem]) -> bool:
    """The last item is an answer that is not finished."""
    if isinstance(given, str) or not given:
        return False
    last = given[-1]
    return last.get("type", "message") in ("message", "reasoning") and last.get("status") in OPEN_STATUSES


def _format(given: TextFormat) -> ResponseFormat:
    if given.type == "json_schema":
        schema = JsonSchemaFormat(
            name=given.name or "schema", schema=given.schema, description=given.description, strict=given.strict
        )
        return ResponseFormat(type="json_schema", json_schema=schema)
    return ResponseFormat(type=given.type)


# --- tools ------------------------------------------------------------------------------------------------------


def _tools(given: Sequence[dict[str, Any]]) -> list[ChatTool] | None:
    tools = [_tool(tool, index) for index, tool in enumerate(given)]
    return tools or None


def _tool(tool: dict[str, Any], index: int) -> ChatTool:
    kind = tool.get("type")
    if kind == "function":
        function = {k: v for k, v in tool.items() if k != "type"}
    elif kind == "custom":
        schema = {"type": "object", "properties": {CUSTOM_INPUT: {"type": "string"}}, "required": [CUSTOM_INPUT]}
        function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": schema}
    else:
        raise InvalidRequestError(
            f"tools.{index}: a tool of type {kind!r} is not supported here; use function or custom.", param="tools"
        )
    converted, _ = codec.convert(ChatTool, {"type": "function", "function": function})
    return converted


def _choice(given: str | dict[str, Any]) -> ToolChoice:
    if isinstance(given, dict):
        if given.get("type") in ("function", "custom") and isinstance(given.get("name"), str):
            return NamedToolChoice(function=NamedFunction(name=given["name"]))
    elif given in ("none", "auto", "required"):
        return msgspec.convert(given, ToolChoice)  # type: ignore[no-any-return]
    raise InvalidRequestError(
        f"Invalid value for `tool_choice`: {given!r}! Only named functions, none, auto or required are supported.",
        param="tool_choice",
    )


# --- messages ---------------------------------------------------------------------------------------------------


def _messages(request: ResponsesRequest) -> list[ChatMessage]:
    messages: list[ChatMessage] = []
    if request.instructions:
        messages.append({"role": "system", "content": request.instructions})
    if isinstance(request.input, str):
        return [*messages, {"role": "user", "content": request.input}]
    for index, item in enumerate(request.input):
        _add_item(messages, item, f"input.{index}")
    return messages


def _add_item(messages: list[ChatMessage], item: InputItem, where: str) -> None:
    """One item becomes a message, or a further part of the assistant's message before it."""
    kind = item.get("type") or ("message" if "role" in item else None)
    if kind in ("function_call", "custom_tool_call"):
        _join(messages, "tool_calls", [_call(item, kind)])
    elif kind == "reasoning":
        _join(messages, "reasoning", _reasoning(item, where))
    elif kind in ("function_call_output", "custom_tool_call_output"):
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": _output(item.get("output"))})
    elif kind == "message" and item.get("role") == "assistant":
        text = _first_text(item.get("content"))
        if text is not None:
            _join(messages, "content", text)
    elif kind == "message" and isinstance(item.get("role"), str):
        messages.append({key: value for key, value in item.items() if key not in ("type", "status", "id")})
    else:
        raise InvalidRequestError(f"{where}: Unsupported input item type: {kind}", param="input")


def _join(messages: list[ChatMessage], field: str, value: Any) -> None:
    """Put `value` on the assistant's message at the end, if there is one that still lacks it; else begin a new one."""
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    if last is not None and field == "tool_calls":
        last["tool_calls"] = [*last.get("tool_calls", ()), *value]
    elif last is not None and last.get(field) is None:
        last[field] = value
    else:
        messages.append({"role": "assistant", field: value})


def _call(item: InputItem, kind: str) -> dict[str, Any]:
    arguments = item.get("arguments")
    if kind == "custom_tool_call":
        arguments = json.dumps({CUSTOM_INPUT: item.get("input") or ""}, ensure_ascii=False)
    function = {"name": item.get("name"), "arguments": arguments}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def _reasoning(item: InputItem, where: str) -> str:
    if item.get("encrypted_content"):
        raise InvalidRequestError(f"{where}: Encrypted content is not supported.", param="input")
    text = _first_text(item.get("content"))
    return text if text is not None else _first_text(item.get("summary")) or ""


def _output(output: Any) -> Any:
    return output if isinstance(output, str | list) or output is None else json.dumps(output, ensure_ascii=False)


def _first_text(content: Any) -> str | None:
    if isinstance(content, str):
        return content
    first = content[0] if isinstance(content, list) and content else None
    text = first.get("text") if isinstance(first, dict) else None
    return text if isinstance(text, str) else None
