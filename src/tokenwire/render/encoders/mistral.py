"""Mistral's chat formats, written by mistral-common from the version that `tekken.json` states.

mistral-common checks a conversation strictly (order of roles, call ids, last message) and gives ids, not text.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from tokenwire.errors import InvalidRequestError, TokenwireError
from tokenwire.render.chat import ChatInput, EncodedChat
from tokenwire.render.encoders import EncoderOptions
from tokenwire.render.messages import Message, normalize, reasoning_of
from tokenwire.render.tekken import TekkenTokenizer
from tokenwire.render.tokenizer import Tokenizer

CALL_ID_LEN = 9
"""Mistral's call ids have exactly this many characters; longer ones keep their end."""
FIRST_VERSION_WITH_EFFORT = 15


class MistralEncoder:
    name = "mistral"
    can_truncate = True
    has_own_calls = True

    def __init__(self, tokenizer: TekkenTokenizer) -> None:
        self._mistral = tokenizer.mistral
        self._version = int(str(tokenizer.mistral.instruct_tokenizer.tokenizer.version.value).rpartition("v")[2])

    def encode(self, chat: ChatInput) -> EncodedChat:
        self._check(chat)
        media = normalize(chat.messages, "string").media
        messages = [_message(message) for message in chat.messages]
        return EncodedChat(self._tokens(messages, chat), media)

    def fingerprint_parts(self) -> list[str]:
        return [self.name, str(self._version)]

    def _check(self, chat: ChatInput) -> None:
        if chat.template is not None or chat.request_variables is not None:
            raise InvalidRequestError(
                "chat_template is not supported for Mistral tokenizers. (parameter=chat_template)",
                param="chat_template",
            )
        if not chat.messages:
            raise InvalidRequestError("A conversation needs at least one message.")
        last = chat.messages[-1].get("role")
        if chat.continue_final_message and chat.add_generation_prompt:
            raise InvalidRequestError("Cannot set both `add_generation_prompt` and `continue_final_message` to True.")
        if chat.add_generation_prompt and last == "assistant":
            raise InvalidRequestError(
                "Cannot set `add_generation_prompt` to True when the last message is from the assistant. Consider "
                "using `continue_final_message` instead."
            )
        if chat.continue_final_message and last != "assistant":
            raise InvalidRequestError(
                "Cannot set `continue_final_message` to True when the last message is not from the assistant."
            )

    def _tokens(self, messages: Sequence[Message], chat: ChatInput) -> list[int]:
        from mistral_common.protocol.instruct.request import ChatCompletionRequest

        effort = {"reasoning_effort": chat.variables.get("reasoning_effort")}
        try:
            request = ChatCompletionRequest.from_openai(
                messages=messages,
                tools=chat.tools,
                continue_final_message=chat.continue_final_message,
                **(effort if self._version >= FIRST_VERSION_WITH_EFFORT else {}),
            )
            tokens: list[int] = self._mistral.encode_chat_completion(request).tokens
        except TokenwireError:
            raise
        except Exception as exc:  # validation errors, asserts and its own family, all about the conversation
            raise InvalidRequestError(str(exc)) from exc
        return tokens


def _message(message: Message) -> Message:
    """A copy with reasoning under the name mistral-common reads, call ids of its length, and no empty call list."""
    out = copy.deepcopy({k: v for k, v in message.items() if k != "reasoning_content"})
    reasoning = reasoning_of(message)
    if reasoning is not None:
        out["reasoning"] = reasoning
    if out.get("role") == "assistant":
        out["tool_calls"] = [_call(call) for call in out.get("tool_calls") or ()]
    if isinstance(out.get("tool_call_id"), str):
        out["tool_call_id"] = out["tool_call_id"][-CALL_ID_LEN:]
    return out


def _call(call: Any) -> Any:
    if isinstance(call, dict) and isinstance(call.get("id"), str):
        call["id"] = call["id"][-CALL_ID_LEN:]
    return call


def make_encoder(tokenizer: Tokenizer, options: EncoderOptions) -> MistralEncoder:
    """Raises `TokenwireError` for a tokenizer that is not Mistral's own."""
    if not isinstance(tokenizer, TekkenTokenizer):
        raise TokenwireError("--tokenizer-mode mistral needs a folder with tekken.json.")
    return MistralEncoder(tokenizer)
