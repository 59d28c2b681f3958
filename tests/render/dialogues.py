"""Dialogues as a model would hold them: answers are ids, cut in ways that no tokenizer would cut their text."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.tokenizers import DATA, has_tokenizer, tokenizer
from tokenwire.render.chat import ChatEncoder, ChatInput
from tokenwire.render.encoders import EncoderOptions, load_encoder
from tokenwire.render.messages import Message
from tokenwire.render.tokenizer import Tokenizer

TOOL = {
    "type": "function",
    "function": {
        "name": "get",
        "description": "Look something up.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
    },
}


@dataclass(slots=True, frozen=True, kw_only=True)
class Model:
    """One model's format. `call` is how it writes a call, `{}` its arguments."""

    tokenizer: str
    encoder: str = "jinja"
    template: str | None = None
    thought: str = ""
    call: str | None = None
    call_stop: str | None = None
    answer_stop: str | None = None
    variables: dict[str, Any] = field(default_factory=dict)

    def load(self) -> tuple[Tokenizer, ChatEncoder]:
        loaded = tokenizer(self.tokenizer)
        text = (DATA / "render" / self.template).read_text("utf-8") if self.template else None
        return loaded, load_encoder(self.encoder, loaded, EncoderOptions(chat_template=text, start_date="2025-01-01"))


THOUGHT = "<think>\nhm {i}\n</think>\n\n"
HARMONY_CALL = "<|channel|>commentary to=functions.get <|constrain|>json<|message|>{args}"
MODELS = {
    "smol": Model(tokenizer="smol"),
    "thinking": Model(
        tokenizer="smol+chatmlthink",
        template="thinking.jinja",
        thought=THOUGHT,
        call='<tool_call>\n{{"name":"get","arguments":  {args}}}\n</tool_call>',
    ),
    "qwen3": Model(
        tokenizer="qwen3", thought=THOUGHT, call='<tool_call>\n{{"name":"get","arguments":  {args}}}\n</tool_call>'
    ),
    "llama31": Model(tokenizer="llama31"),
    "gemma3": Model(tokenizer="gemma3"),
    "deepseek_v3": Model(tokenizer="deepseek_v3"),
    "deepseek_v32": Model(
        tokenizer="deepseek_v32",
        encoder="deepseek_v32",
        thought="hm {i}</think>",
        call='\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="get">{args}',
        variables={"thinking": True},
    ),
    "deepseek_v4": Model(
        tokenizer="deepseek_v4",
        encoder="deepseek_v4",
        thought="hm {i}</think>",
        call='\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get">{args}',
    ),
    "gptoss": Model(
        tokenizer="gptoss",
        encoder="harmony",
        thought="<|channel|>analysis<|message|>hm {i}<|end|><|start|>assistant",
        call=HARMONY_CALL,
        call_stop="<|call|>",
        answer_stop="<|return|>",
    ),
    "mistral_tekken": Model(
        tokenizer="mistral_tekken",
        encoder="mistral",
        call='[TOOL_CALLS][{{"name":"get","arguments":{args},"id":"{id}"}}]',
    ),
}


def models_at_hand() -> list[str]:
    return [name for name, model in MODELS.items() if has_tokenizer(model.tokenizer)]


@dataclass(slots=True)
class Dialogue:
    """Messages so far, and the ids of prompts and answers."""

    model: Model
    tokenizer: Tokenizer
    encoder: ChatEncoder
    messages: list[Message] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    num_covered: int = 0

    @classmethod
    def begin(cls, name: str) -> Dialogue:
        loaded, encoder = MODELS[name].load()
        dialogue = cls(MODELS[name], loaded, encoder)
        dialogue.messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Question 0"}]
        dialogue.ids = dialogue.encoded()
        return dialogue

    def chat(self) -> ChatInput:
        tools = [TOOL] if self.model.call else None
        return ChatInput(messages=self.messages, tools=tools, variables=self.model.variables)

    def encoded(self) -> list[int]:
        """The whole conversation rendered and encoded anew, as a text API would."""
        prompt = self.encoder.encode(self.chat()).prompt
        return prompt if isinstance(prompt, list) else self.tokenizer.encode(prompt, add_special_tokens=False)

    def answer(self, index: int, rng: random.Random, *, stops: bool) -> None:
        """The model answers, with a call in two of three turns if it knows calls, and the other side replies."""
        model = self.model
        calls = model.call is not None and index % 3 != 2
        arguments = json.dumps({"x": f"v{index}"})
        text = model.thought.format(i=index)
        if calls:
            assert model.call is not None
            text += model.call.format(args=arguments, id=f"call{index:05d}")
        else:
            text += f"<|channel|>final<|message|>Answer {index}" if model.encoder == "harmony" else f"Answer {index}  "
        stop = (model.call_stop if calls else model.answer_stop) or self.tokenizer.eos_token
        assert stop is not None
        ids = list(self._cut(text, rng))
        stop_id = self.tokenizer.piece_to_id(stop)
        assert stop_id is not None
        self.ids = [*self.ids, *ids, *([stop_id] if stops else [])]
        self.messages = [*self.messages, _answer_message(model, index, arguments if calls else None)]
        self.num_covered = len(self.messages)
        self.messages.append(_reply(index, to_call=calls))

    def _cut(self, text: str, rng: random.Random) -> Iterator[int]:
        """Ids of `text`, now and then cut where the tokenizer would not."""
        if self.model.encoder == "mistral" and text.startswith("[TOOL_CALLS]"):
            marker = self.tokenizer.piece_to_id("[TOOL_CALLS]")
            assert marker is not None
            yield marker
            text = text.removeprefix("[TOOL_CALLS]")
        size = rng.choice([1, 3, 7, 1000])
        pieces = [text[i : i + size] for i in range(0, len(text), size)] if "<" not in text else [text]
        for piece in pieces:
            yield from self.tokenizer.encode(piece, add_special_tokens=False)


def _answer_message(model: Model, index: int, arguments: str | None) -> Message:
    message: Message = {"role": "assistant", "content": None if arguments else f"Answer {index}"}
    if model.thought:
        message["reasoning"] = f"hm {index}"
    if arguments:
        function = {"name": "get", "arguments": arguments}
        message["tool_calls"] = [{"id": f"call{index:05d}", "type": "function", "function": function}]
    return message


def _reply(index: int, *, to_call: bool) -> Message:
    if to_call:
        return {"role": "tool", "tool_call_id": f"call{index:05d}", "content": f"result {index}"}
    return {"role": "user", "content": f"Question {index + 1}"}
