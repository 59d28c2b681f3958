"""Harmony, the format of gpt-oss: channels, recipients, and tools as TypeScript types.

Written out as segments. Structural tokens are placed by id and every text is encoded as ordinary text, so a message
that spells `<|end|>` cannot end itself. The reference is the format's own documentation (openai/harmony,
`docs/format.md`) and what its library renders; call headers keep the older order `assistant to=...<|channel|>...`
that the models were trained on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tokenwire.errors import InvalidRequestError, TokenwireError
from tokenwire.render.chat import ChatInput, EncodedChat
from tokenwire.render.encoders import EncoderOptions
from tokenwire.render.encoders.typescript import tools_section
from tokenwire.render.messages import Message, normalize, plain_text, reasoning_of
from tokenwire.render.tokenizer import Tokenizer

IDENTITY = "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06"
CHANNELS = "# Valid channels: analysis, commentary, final. Channel must be included for every message."
CALLS_CHANNEL = "\nCalls to these tools must go to the commentary channel: 'functions'."
EFFORTS = ("low", "medium", "high")


@dataclass(slots=True, frozen=True, kw_only=True)
class _Block:
    """One Harmony message. `header` is what stands between `<|start|>` and `<|channel|>`."""

    header: str
    texts: Sequence[str]
    """Each is encoded on its own, as the parts of a message are."""
    channel: str | None = None
    end: str = "<|end|>"


class HarmonyEncoder:
    name = "harmony"
    can_truncate = False
    has_own_calls = True

    def __init__(self, tokenizer: Tokenizer, start_date: str | None) -> None:
        """Raises `TokenwireError` if the vocabulary lacks the format's tokens."""
        self._tokenizer = tokenizer
        self._start_date = start_date
        names = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>")
        ids = {name: tokenizer.piece_to_id(name) for name in names}
        if missing := [name for name, token_id in ids.items() if token_id is None]:
            raise TokenwireError(f"The tokenizer lacks the Harmony tokens {', '.join(missing)}.")
        self._id = {name: token_id for name, token_id in ids.items() if token_id is not None}

    def encode(self, chat: ChatInput) -> EncodedChat:
        media = normalize(chat.messages, "string").media
        blocks = _without_old_analysis(list(self._blocks(chat)))
        ids = [token_id for block in blocks for token_id in self._block_ids(block)]
        if not chat.ends_closed:
            ids += [self._id["<|start|>"], *self._tokenizer.encode_ordinary("assistant")]
        return EncodedChat(ids, media)

    def fingerprint_parts(self) -> list[str]:
        return [self.name, IDENTITY, CHANNELS, CALLS_CHANNEL]

    def _block_ids(self, block: _Block) -> Iterable[int]:
        encode = self._tokenizer.encode_ordinary
        yield self._id["<|start|>"]
        yield from encode(block.header)
        if block.channel is not None:
            yield self._id["<|channel|>"]
            yield from encode(block.channel)
        yield self._id["<|message|>"]
        for text in block.texts:
            yield from encode(text)
        yield self._id[block.end]

    def _blocks(self, chat: ChatInput) -> Iterable[_Block]:
        instructions, messages = _leading_instructions(chat.messages)
        yield _Block(header="system", texts=[self._system_text(chat)])
        if instructions or chat.tools:
            yield _Block(header="developer", texts=[_developer_text(instructions, chat.tools)])
        names = {
            call.get("id"): (call.get("function") or {}).get("name")
            for message in messages
            for call in message.get("tool_calls") or ()
        }
        for message in messages:
            yield from _message_blocks(message, names)

    def _system_text(self, chat: ChatInput) -> str:
        effort = chat.variables.get("reasoning_effort") or "medium"
        if effort not in EFFORTS:
            raise InvalidRequestError(
                f"reasoning_effort={effort!r} is not supported by Harmony. Supported values are: high, medium, low.",
                param="reasoning_effort",
            )
        date = self._start_date or datetime.now().strftime("%Y-%m-%d")
        tail = CALLS_CHANNEL if chat.tools else ""
        return f"{IDENTITY}\nCurrent date: {date}\n\nReasoning: {effort}\n\n{CHANNELS}{tail}"


def _leading_instructions(messages: Sequence[Message]) -> tuple[str | None, Sequence[Message]]:
    """The text of a system or developer message at the front, and the messages after it."""
    if messages and messages[0].get("role") in ("system", "developer"):
        return plain_text(messages[0].get("content")), messages[1:]
    return None, messages


def _developer_text(instructions: str | None, tools: list[dict[str, Any]] | None) -> str:
    parts = [f"# Instructions\n\n{instructions}"] if instructions else []
    if tools:
        parts.append(tools_section([tool["function"] for tool in tools]))
    return "\n\n".join(parts)


def _message_blocks(message: Message, names: dict[Any, Any]) -> Iterable[_Block]:
    role = message["role"]
    text = plain_text(message.get("content")) or ""
    if role == "assistant":
        yield from _assistant_blocks(message, text)
    elif role == "tool":
        name = names.get(message.get("tool_call_id")) or ""
        yield _Block(header=f"functions.{name}", channel="commentary to=assistant", texts=[text])
    elif role in ("system", "developer"):
        if message.get("content") is not None:
            yield _Block(header="developer", texts=[f"# Instructions\n\n{text}"])
    elif role == "user":
        yield _Block(header="user", texts=_texts(message))
    else:
        raise InvalidRequestError(f"Invalid role: {role}")


def _assistant_blocks(message: Message, text: str) -> Iterable[_Block]:
    """Reasoning, then the answer; with calls: the preamble, the reasoning, each call."""
    reasoning = plain_text(reasoning_of(message))
    analysis = [_Block(header="assistant", channel="analysis", texts=[reasoning])] if reasoning else []
    calls = message.get("tool_calls") or ()
    if not calls:
        yield from analysis
        if text:
            yield _Block(header="assistant", channel="final", texts=_texts(message))
        return
    if text:
        yield _Block(header="assistant", channel="commentary", texts=[text])
    yield from analysis
    for call in calls:
        function = call.get("function") or {}
        yield _Block(
            header=f"assistant to=functions.{function.get('name') or ''}",
            channel="commentary json",
            texts=[function.get("arguments") or ""],
            end="<|call|>",
        )


def _texts(message: Message) -> list[str]:
    content = message.get("content") or ""
    return [content] if isinstance(content, str) else [plain_text([part]) or "" for part in content]


def _without_old_analysis(blocks: list[_Block]) -> list[_Block]:
    """Reasoning that led to a final answer is dropped once that answer stands."""
    last_final = max((i for i, b in enumerate(blocks) if b.header == "assistant" and b.channel == "final"), default=-1)
    return [b for i, b in enumerate(blocks) if i >= last_final or b.channel != "analysis"]


def make_encoder(tokenizer: Tokenizer, options: EncoderOptions) -> HarmonyEncoder:
    return HarmonyEncoder(tokenizer, options.start_date)
