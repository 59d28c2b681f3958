"""Rules of chat and completion requests that span fields; upstream's model validators, in upstream's words.

They need no server: what depends on flags (parsers, trust) is in `service/render.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenwire.errors import BodyValidationError, InvalidRequestError
from tokenwire.service.checks import check_cache_salt
from tokenwire.wire.chat import ChatCompletionRequest, CommonSampling, ResponseFormat
from tokenwire.wire.completion import CompletionRequest

MAX_STOP_STRINGS = 4
EXCLUSIVE_KINDS = ("json", "regex", "choice")


def check_chat(request: ChatCompletionRequest, *, max_stop_strings: int = MAX_STOP_STRINGS) -> None:
    """Raises `InvalidRequestError` (`BodyValidationError` for messages that are not of the declared shape)."""
    _check_common(request, max_stop_strings)
    for index, message in enumerate(request.messages):
        _check_message(message, f"body.messages.{index}")
    _check_chat_logprobs(request)
    _check_tools(request)
    if request.continue_final_message and request.add_generation_prompt is True:
        raise InvalidRequestError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    _check_prefix(request)


def check_completion(request: CompletionRequest, *, max_stop_strings: int = MAX_STOP_STRINGS) -> None:
    """As `check_chat`, for completions."""
    _check_common(request, max_stop_strings)
    _check_count("logprobs", request.logprobs)
    if request.logprob_token_ids and request.logprobs is None:
        raise _named("logprob_token_ids", "when using `logprob_token_ids`, `logprobs` must be set.")
    if request.prompt_embeds is not None:
        raise _named("prompt_embeds", "prompt_embeds is not supported by this server; send text or token ids.")


def check_lengths(request: ChatCompletionRequest | CompletionRequest, max_model_len: int | None) -> None:
    """What is asked for must be possible at all. Lengths in tokens."""
    if max_model_len is None:
        return
    field = "max_tokens"
    if isinstance(request, ChatCompletionRequest) and request.max_completion_tokens is not None:
        field = "max_completion_tokens"
    asked = request.requested_max_tokens
    if asked is not None and asked > max_model_len:
        raise _named(
            field,
            f"{field}={asked} cannot be greater than max_model_len={max_model_len}. "
            "Please request fewer output tokens.",
            asked,
        )
    truncate = request.truncate_prompt_tokens
    if truncate is not None and truncate > max_model_len:
        raise _named(
            "truncate_prompt_tokens",
            f"truncate_prompt_tokens={truncate} cannot be greater than max_model_len = {max_model_len}. "
            "Please request a smaller truncation size.",
            truncate,
        )


def _named(field: str, sentence: str, value: object = None) -> InvalidRequestError:
    shown = f"parameter={field}" if value is None else f"parameter={field}, value={value}"
    return InvalidRequestError(f"{sentence} ({shown})", param=field)


def _check_common(request: CommonSampling, max_stop_strings: int) -> None:
    check_cache_salt(request.cache_salt)
    if isinstance(request.stop, list) and len(request.stop) > max_stop_strings:
        sentence = f"List should have at most {max_stop_strings} items after validation, not {len(request.stop)}"
        raise BodyValidationError([("body.stop", sentence)])
    if request.use_beam_search:
        raise InvalidRequestError("Beam search is not supported by the render endpoint", param="use_beam_search")
    if request.response_format is not None:
        _check_response_format(request.response_format)
    if request.stream_options is not None and not request.stream:
        raise _named("stream_options", "Stream options can only be defined when `stream=True`.")
    _check_count("prompt_logprobs", request.prompt_logprobs)
    if request.stream and (request.prompt_logprobs or 0) != 0:
        raise _named("prompt_logprobs", "`prompt_logprobs` are not available when `stream=True`.")
    structured = request.structured_outputs
    if structured is not None and len([k for k in structured.kinds if k in EXCLUSIVE_KINDS]) > 1:
        raise InvalidRequestError(
            "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice').",
            param="structured_outputs",
        )


def _check_response_format(given: ResponseFormat) -> None:
    if given.type == "json_schema" and given.json_schema is None:
        raise _named(
            "response_format",
            "When response_format type is 'json_schema', the 'json_schema' field must be provided.",
        )
    is_legacy = given.structures is not None and given.triggers is not None
    if given.type == "structural_tag" and given.format is None and not is_legacy:
        raise _named("response_format", "Invalid response_format structural_tag specification.")


def _check_count(field: str, count: int | None) -> None:
    if count is not None and count < -1:
        raise _named(field, f"`{field}` must be a positive value or -1.", count)


def _check_chat_logprobs(request: ChatCompletionRequest) -> None:
    if request.logprob_token_ids and not request.logprobs:
        raise _named("logprob_token_ids", "when using `logprob_token_ids`, `logprobs` must be set to true.")
    _check_count("top_logprobs", request.top_logprobs)
    if request.top_logprobs and not request.logprobs:
        raise _named("top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true.")


def _check_tools(request: ChatCompletionRequest) -> None:
    if request.tools == []:
        raise _named(
            "tools", "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."
        )
    choice = request.effective_tool_choice
    if choice == "none":
        return
    if request.tools is None:
        raise _named("tool_choice", "When using `tool_choice`, `tools` must be set.")
    name = request.named_tool
    if name == "":
        raise _named("tool_choice", "Invalid `name` in `function` in `tool_choice`: it must not be empty.")
    if name is not None and all(tool.function.name != name for tool in request.tools):
        raise _named("tool_choice", "The tool specified in `tool_choice` does not match any of the specified `tools`")
    structured = request.structured_outputs
    if name is not None and structured is not None and any(k in EXCLUSIVE_KINDS for k in structured.kinds):
        raise InvalidRequestError(
            "You can only either use constraints for structured outputs or tools, not both.", param="structured_outputs"
        )


def _check_prefix(request: ChatCompletionRequest) -> None:
    if request.prefix_token_ids is None:
        if request.prefix_message_count is not None:
            raise _named("prefix_message_count", "prefix_message_count needs prefix_token_ids.")
        return
    if not request.prefix_token_ids:
        raise _named("prefix_token_ids", "prefix_token_ids must not be empty.")
    count = request.prefix_message_count
    if count is None:
        raise _named("prefix_message_count", "prefix_token_ids needs prefix_message_count.")
    if count > len(request.messages):
        raise _named(
            "prefix_message_count",
            f"prefix_message_count={count} is more than the {len(request.messages)} messages of the request.",
        )
    if request.truncate_prompt_tokens is not None:
        raise _named("truncate_prompt_tokens", "A prompt that begins with prefix_token_ids cannot be truncated.")
    if request.return_token_offsets:
        raise _named("return_token_offsets", "A prompt that begins with prefix_token_ids has no token offsets.")
    if request.continue_final_message:
        raise _named(
            "continue_final_message",
            "prefix_token_ids already end where the model goes on; continue_final_message cannot be combined with it.",
        )


# --- messages -------------------------------------------------------------------------------------------------------


def _check_message(message: Mapping[str, Any], path: str) -> None:
    role = message.get("role")
    if "role" not in message:
        raise BodyValidationError([(f"{path}.role", "Field required")])
    if not isinstance(role, str):
        raise BodyValidationError([(f"{path}.role", f"Input should be a valid string, got {role!r}")])
    content = message.get("content")
    if content is not None and not isinstance(content, str | list):
        raise BodyValidationError([(f"{path}.content", "Input should be a valid string or a list of parts")])
    for index, part in enumerate(content if isinstance(content, list) else ()):
        if not isinstance(part, str | dict):
            raise BodyValidationError([(f"{path}.content.{index}", "Input should be a part (an object with a type)")])
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise BodyValidationError([(f"{path}.tool_calls", "Input should be a valid list")])
    for index, call in enumerate(calls or ()):
        if not isinstance(call, dict):
            raise BodyValidationError([(f"{path}.tool_calls.{index}", "Input should be a valid dictionary")])
