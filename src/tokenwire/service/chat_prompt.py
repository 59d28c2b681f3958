"""From a chat request to its prompt: template variables, the encoder, ids, or a prefix that is continued."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tokenwire.errors import InvalidRequestError
from tokenwire.render.chat import ChatEncoder, ChatInput
from tokenwire.render.messages import MediaItem
from tokenwire.render.prefix import Prefix, continue_prefix
from tokenwire.render.tokenize import TokenizedPrompt, TokenizeOptions, check_fits, tokenize
from tokenwire.render.tokenizer import Tokenizer
from tokenwire.service.chat_rules import MAX_STOP_STRINGS
from tokenwire.wire.chat import ChatCompletionRequest

UNSET_KWARGS = (None, "auto")
"""Values of `chat_template_kwargs` that leave a server default as it is."""


@dataclass(slots=True, frozen=True, kw_only=True)
class RenderOptions:
    """Server-wide settings of rendering. Lengths in tokens."""

    max_model_len: int | None = None
    """None: not known here; generate fills `max_tokens` in and checks lengths."""
    default_sampling_params: Mapping[str, Any] = field(default_factory=dict)
    override_max_tokens: int | None = None
    default_chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    enable_auto_tool_choice: bool = False
    exclude_tools_when_tool_choice_none: bool = False
    trust_request_chat_template: bool = False
    trust_request_mm_kwargs: bool = False
    max_stop_strings: int = MAX_STOP_STRINGS
    stop_token_ids: Collection[int] = ()
    """Ids that end an answer, beside the tokenizer's EOS."""


class ChatPrompt(NamedTuple):
    """`text` only where the format is a text; `variables` are all that the template saw."""

    prompt: TokenizedPrompt
    text: str | None
    variables: dict[str, Any]


class ChatPrompts:
    """Renders chats of one server. Blocking: call it in a thread."""

    def __init__(self, model: str, tokenizer: Tokenizer, encoder: ChatEncoder, options: RenderOptions) -> None:
        """`model` is the name for messages."""
        self._model = model
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._options = options

    def render(self, request: ChatCompletionRequest, *, bounded: bool = True) -> ChatPrompt:
        """Raises `InvalidRequestError`. `bounded`: hold the prompt against the context."""
        self._check_trust(request)
        variables = self._variables(request)
        chat = self._chat_input(request, variables)
        if reused := _reused_ids(request):
            return ChatPrompt(TokenizedPrompt(reused), None, variables)
        max_model_len = self._options.max_model_len if bounded else None
        if request.prefix_token_ids is not None and request.prefix_message_count is not None:
            prefix = Prefix(request.prefix_token_ids, request.prefix_message_count)
            ids = continue_prefix(self._encoder, self._tokenizer, chat, prefix, self._options.stop_token_ids)
            check_fits(len(ids), max_model_len)
            return ChatPrompt(TokenizedPrompt(ids), None, variables)
        encoded = self._encoder.encode(chat)
        self._refuse_media(encoded.media)
        options = TokenizeOptions(
            max_model_len=max_model_len,
            truncate=request.truncate_prompt_tokens if self._encoder.can_truncate else None,
            truncation_side=request.truncation_side,
            add_special_tokens=request.add_special_tokens,
            with_offsets=bool(request.return_token_offsets),
        )
        text = encoded.prompt if isinstance(encoded.prompt, str) else None
        return ChatPrompt(tokenize(self._tokenizer, encoded.prompt, options), text, variables)

    def wants_system_first(self) -> bool:
        """Does the template refuse a system message that is not the first? Then Anthropic's are merged at the front."""
        turns = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]
        try:
            self._encoder.encode(ChatInput(messages=turns, add_generation_prompt=False))
        except InvalidRequestError:
            return True
        return False

    def _chat_input(self, request: ChatCompletionRequest, variables: Mapping[str, Any]) -> ChatInput:
        tools = [tool.as_template_data() for tool in request.tools] if request.tools else None
        if request.effective_tool_choice == "none" and self._options.exclude_tools_when_tool_choice_none:
            tools = None
        structural = ("add_generation_prompt", "continue_final_message", "documents", "tools")
        return ChatInput(
            messages=request.messages,
            tools=variables.get("tools", tools),
            documents=variables.get("documents"),
            variables={name: value for name, value in variables.items() if name not in structural},
            request_variables=request.chat_template_kwargs,
            add_generation_prompt=request.wants_generation_prompt,
            continue_final_message=request.continue_final_message,
            template=request.chat_template,
        )

    def _variables(self, request: ChatCompletionRequest) -> dict[str, Any]:
        """Template variables: server defaults, under the request's own."""
        return {**self._options.default_chat_template_kwargs, **own_variables(request)}

    def _check_trust(self, request: ChatCompletionRequest) -> None:
        options = self._options
        kwargs = request.chat_template_kwargs or {}
        has_template = request.chat_template is not None or kwargs.get("chat_template") is not None
        if has_template and not options.trust_request_chat_template:
            raise InvalidRequestError(
                "Chat template is passed with request, but --trust-request-chat-template is not set. Refused request "
                "with untrusted chat template."
            )
        for name in ("mm_processor_kwargs", "media_io_kwargs"):
            if getattr(request, name) and not options.trust_request_mm_kwargs:
                raise InvalidRequestError(
                    f"Per-request {name} are disabled by default because they can change how much work preprocessing "
                    "is. Start the server with --trust-request-mm-kwargs only when clients are trusted.",
                    param=name,
                )

    def _refuse_media(self, media: list[MediaItem]) -> None:
        if media:
            raise InvalidRequestError(
                f"{self._model} is not a multimodal model: it cannot take {media[0].modality} parts.",
                param="messages",
            )


def own_variables(request: ChatCompletionRequest) -> dict[str, Any]:
    """What a request tells the template, its fields over its kwargs; also what the parser of its answer must know."""
    own = dict(request.chat_template_kwargs or {})
    effort = request.reasoning_effort
    fields: dict[str, Any] = {
        "add_generation_prompt": request.wants_generation_prompt,
        "continue_final_message": request.continue_final_message,
        "documents": request.documents,
        "reasoning_effort": effort,
    }
    if effort is not None and "enable_thinking" not in own:
        # Templates that think only when told to; those that do not know the name never see it.
        fields["enable_thinking"] = effort != "none"
    own |= {name: value for name, value in fields.items() if value not in UNSET_KWARGS}
    return {name: value for name, value in own.items() if value not in UNSET_KWARGS}


REUSED = "prompt_token_ids"


def _reused_ids(request: ChatCompletionRequest) -> list[int] | None:
    """Ids that a prefill leg hands on in `kv_transfer_params`: the decode leg need not render them again."""
    ids = (request.kv_transfer_params or {}).get(REUSED)
    if ids is None or request.echo:
        return None
    if not isinstance(ids, list) or not ids or any(type(i) is not int or i < 0 for i in ids):
        raise InvalidRequestError(
            "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative integers.",
            param="kv_transfer_params.prompt_token_ids",
        )
    return ids


def without_reused_ids(params: dict[str, Any] | None) -> dict[str, Any] | None:
    """Transfer params as they travel on."""
    return None if params is None else {name: value for name, value in params.items() if name != REUSED}
