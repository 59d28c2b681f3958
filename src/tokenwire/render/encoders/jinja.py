"""Models that bring a Jinja chat template: nearly all of them."""

from __future__ import annotations

from typing import Any

from tokenwire.errors import InvalidRequestError
from tokenwire.render.chat import ChatInput, EncodedChat
from tokenwire.render.developer import without_developer_role
from tokenwire.render.encoders import EncoderOptions
from tokenwire.render.messages import normalize
from tokenwire.render.template import ChatTemplate, compile_template
from tokenwire.render.tokenizer import Tokenizer

RESERVED = ("messages", "conversation", "tokenize", "chat_template")
"""Names a caller's `chat_template_kwargs` may not set."""

NO_TEMPLATE = (
    "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template if the "
    "tokenizer does not define one."
)


class JinjaEncoder:
    name = "jinja"
    can_truncate = True
    has_own_calls = False

    def __init__(self, tokenizer: Tokenizer, options: EncoderOptions) -> None:
        self._templates = dict(tokenizer.chat_templates)
        self._override = options.chat_template
        self._content_format = options.content_format
        self._special = dict(tokenizer.special.named)

    def encode(self, chat: ChatInput) -> EncodedChat:
        template = self._template_for(chat)
        if bad := [name for name in RESERVED if name in chat.variables]:
            raise InvalidRequestError(
                f"Found unexpected chat template kwargs from request: {', '.join(bad)}", param="chat_template_kwargs"
            )
        conversation = normalize(chat.messages, self._content_format or template.content_format)
        messages = conversation.messages
        if not template.knows_developer_role:
            messages = without_developer_role(messages)
        text = template.render(
            messages,
            tools=chat.tools,
            documents=chat.documents,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            variables={**self._special, **chat.variables},
        )
        return EncodedChat(text, conversation.media)

    def fingerprint_parts(self) -> list[str]:
        override = [] if self._override is None else [self._override]
        return [self.name, str(self._content_format), *override, *(f"{k}\0{v}" for k, v in self._templates.items())]

    def _template_for(self, chat: ChatInput) -> ChatTemplate:
        """The request's template, else the server's, else the tokenizer's `tool_use` or `default` one."""
        text = chat.template if chat.template is not None else self._override
        if text is not None:
            return compile_template(self._templates.get(text, text))
        name = "tool_use" if chat.tools is not None and "tool_use" in self._templates else "default"
        if name not in self._templates:
            raise InvalidRequestError(_missing(self._templates), param="chat_template")
        return compile_template(self._templates[name])


def _missing(templates: dict[str, Any]) -> str:
    if not templates:
        return NO_TEMPLATE
    return f"The tokenizer has no default chat template; name one of {', '.join(sorted(templates))} in chat_template."


def make_encoder(tokenizer: Tokenizer, options: EncoderOptions) -> JinjaEncoder:
    return JinjaEncoder(tokenizer, options)
