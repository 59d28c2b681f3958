"""Anthropic's messages as a chat request: the same prompt as the same conversation in OpenAI's words."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from tokenwire.errors import BodyValidationError, InvalidRequestError
from tokenwire.render.messages import BILLING_HEADER
from tokenwire.wire.chat import (
    ChatCompletionRequest,
    ChatMessage,
    ChatTool,
    FunctionDefinition,
    JsonSchemaFormat,
    ReasoningEffort,
    ResponseFormat,
)
from tokenwire.wire.generate import NamedFunction, NamedToolChoice, StreamOptions, ToolChoice
from tokenwire.wire.messages import AnthropicTool, Content, ContentBlock, MessagesRequest, ToolChange

TOOL_CHANGES = ("tool_addition", "tool_removal")


def messages_to_chat(request: MessagesRequest, *, merge_system: bool) -> ChatCompletionRequest:
    """`merge_system`: the template takes a system message at the front only, so all are merged there.

    Raises `InvalidRequestError`.
    """
    _check(request)
    messages = list(_messages(request, merge_system=merge_system))
    tools = _tools(request)
    choice = request.tool_choice
    config = request.output_config
    return ChatCompletionRequest(
        model=request.model,
        messages=messages,
        max_completion_tokens=request.max_tokens,
        stop=request.stop_sequences,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        stream=bool(request.stream),
        stream_options=StreamOptions(include_usage=True, continuous_usage_stats=True) if request.stream else None,
        reasoning_effort=_effort(request),
        thinking_token_budget=request.thinking.budget_tokens if _thinks(request) and request.thinking else None,
        response_format=_format(config.format.schema) if config and config.format and config.format.schema else None,
        tools=tools,
        tool_choice=_choice(request, has_tools=tools is not None),
        parallel_tool_calls=not choice.disable_parallel_tool_use if choice is not None else True,
        watermarking=request.watermarking,
        cache_salt=request.cache_salt,
        kv_transfer_params=request.kv_transfer_params,
        ec_transfer_params=request.ec_transfer_params,
        vllm_xargs=request.vllm_xargs,
        chat_template_kwargs=request.chat_template_kwargs,
        mm_payload=request.mm_payload,
        return_mm_kwargs=request.return_mm_kwargs,
    )


def _check(request: MessagesRequest) -> None:
    thinking = request.thinking
    if thinking is not None and thinking.type == "enabled":
        if thinking.budget_tokens is None:
            raise BodyValidationError([("body.thinking.budget_tokens", "Field required")])
        is_prefill_leg = bool((request.kv_transfer_params or {}).get("do_remote_decode"))
        if thinking.budget_tokens >= request.max_tokens and not is_prefill_leg:
            raise InvalidRequestError("thinking.budget_tokens must be less than max_tokens", param="thinking")
    choice = request.tool_choice
    if choice is not None and choice.type == "tool" and not choice.name:
        raise InvalidRequestError("tool_choice.name is required when type is 'tool'", param="tool_choice")
    for message in request.messages:
        for block in _blocks(message.content):
            if block.type in TOOL_CHANGES and message.role != "system":
                raise InvalidRequestError(
                    f'{block.type} blocks are only allowed in messages with role "system"', param="messages"
                )


def _thinks(request: MessagesRequest) -> bool:
    return request.thinking is not None and request.thinking.type == "enabled"


def _effort(request: MessagesRequest) -> ReasoningEffort | None:
    if request.thinking is not None and request.thinking.type == "disabled":
        return "none"
    return request.output_config.effort if request.output_config is not None else None


def _format(schema: dict[str, Any]) -> ResponseFormat:
    return ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(name="json_schema", schema=schema))


def _choice(request: MessagesRequest, *, has_tools: bool) -> ToolChoice | None:
    choice = request.tool_choice
    if choice is None:
        return "auto" if has_tools else None
    if choice.type == "tool":
        return NamedToolChoice(function=NamedFunction(name=choice.name or ""))
    words: dict[str, ToolChoice] = {"auto": "auto", "any": "required", "none": "none"}
    return words[choice.type]


# --- tools ------------------------------------------------------------------------------------------------------


def _tools(request: MessagesRequest) -> list[ChatTool] | None:
    """The tools in effect at the end of the conversation: system messages may have added and removed some."""
    tools = {tool.name: tool for tool in request.tools or ()}
    removed: set[str] = set()
    changes = [
        block for message in request.messages for block in _blocks(message.content) if block.type in TOOL_CHANGES
    ]
    for block in changes:
        if block.tool is None:
            raise InvalidRequestError(f"tool is required for {block.type} blocks", param="messages")
        name = _apply(block.type, block.tool, tools)
        (removed.add if block.type == "tool_removal" else removed.discard)(name)
    if request.tools is None and not changes:
        return None
    kept = [_chat_tool(tool) for name, tool in tools.items() if name not in removed]
    return kept or None


def _apply(kind: str, change: ToolChange, tools: dict[str, AnthropicTool]) -> str:
    if change.type == "tool_definition" and change.definition is not None:
        if kind == "tool_removal":
            raise InvalidRequestError("tool_removal only accepts a tool_reference", param="messages")
        tools[change.definition.name] = change.definition
        return change.definition.name
    name = change.name or ""
    if name not in tools:
        raise InvalidRequestError(f"{kind} references tool {name!r}, which is not declared in tools", param="messages")
    if kind == "tool_addition":
        tools[name] = msgspec.structs.replace(tools[name], defer_loading=None)
    return name


def _chat_tool(tool: AnthropicTool) -> ChatTool:
    return ChatTool(
        function=FunctionDefinition(
            name=tool.name,
            description=tool.description,
            parameters=tool.input_schema if "type" in tool.input_schema else {**tool.input_schema, "type": "object"},
            strict=tool.strict,
            defer_loading=tool.defer_loading,
        )
    )


# --- messages ---------------------------------------------------------------------------------------------------


def _blocks(content: Content | None) -> list[ContentBlock]:
    return content if isinstance(content, list) else []


def _messages(request: MessagesRequest, *, merge_system: bool) -> Iterable[ChatMessage]:
    system = [_system_text(request.system)]
    if merge_system:
        system += [_system_text(message.content) for message in request.messages if message.role == "system"]
    if text := "".join(system):
        yield {"role": "system", "content": text}
    for message in request.messages:
        if message.role == "system":
            if not merge_system and (text := _system_text(message.content)):
                yield {"role": "system", "content": text}
        elif isinstance(message.content, str):
            yield {"role": message.role, "content": message.content}
        else:
            yield from _turn(message.role, message.content)


def _system_text(content: Content | None) -> str:
    texts = [content or ""] if not isinstance(content, list) else [b.text or "" for b in content if b.type == "text"]
    return "".join(text for text in texts if not text.startswith(BILLING_HEADER))


def _turn(role: str, blocks: list[ContentBlock]) -> Iterable[ChatMessage]:
    """Tool results first, each as a message of its own, then what the blocks say otherwise."""
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in blocks:
        if block.type == "text" and block.text:
            parts.append({"type": "text", "text": block.text})
        elif block.type == "image" and block.source:
            parts.append(_image(block.source))
        elif block.type == "thinking" and block.thinking is not None:
            thoughts.append(block.thinking)
        elif block.type == "tool_use":
            calls.append(_call(block, len(calls)))
        elif block.type == "tool_result" and role == "user":
            yield from _tool_results(block)
        elif block.type == "tool_result":
            parts.append({"type": "text", "text": f"Tool result: {block.content or ''}"})
    message: ChatMessage = {"role": role}
    if thoughts:
        message["reasoning"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    if parts:
        message["content"] = parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts
    if role != "user" or "content" in message:
        yield message


def _call(block: ContentBlock, index: int) -> dict[str, Any]:
    arguments = json.dumps(block.input or {})
    return {
        "id": block.id or f"call_{index}",
        "type": "function",
        "function": {"name": block.name or "", "arguments": arguments},
    }


def _tool_results(block: ContentBlock) -> Iterable[ChatMessage]:
    items = [item for item in block.content if isinstance(item, dict)] if isinstance(block.content, list) else []
    text = block.content if isinstance(block.content, str) else None
    if text is None:
        text = "\n".join(item.get("text", "") for item in items if item.get("type") == "text")
    call_id = block.tool_use_id or ""
    yield {"role": "tool", "tool_call_id": call_id, "content": text}
    if images := [_image(item.get("source") or {}) for item in items if item.get("type") == "image"]:
        yield {"role": "user", "content": images}
    names = [item.get("tool_name") or item.get("name") for item in items if item.get("type") == "tool_reference"]
    if references := [{"type": "tool_reference", "name": name} for name in names if name]:
        yield {"role": "tool", "tool_call_id": call_id, "content": references}


def _image(source: dict[str, Any]) -> dict[str, Any]:
    if source.get("type") == "url":
        url = source.get("url", "")
    else:
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}
