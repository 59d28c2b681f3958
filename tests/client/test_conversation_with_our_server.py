"""Token-exact conversations through this package's own render, generate and derender, on a real tokenizer.

The scripted model spells every text character by character, as no tokenizer would, and writes its JSON without spaces,
as the template would not. The template is of the usual kind: it drops old reasoning and writes calls down anew.

1. Twenty turns with tool calls: every prompt begins with exactly the ids before it, with the answer read by generate
   or by the derender route; encoding the same dialogue anew drifts in every turn, which is counted beside it.
2. The record holds what the engine sampled, where it sampled it.
3. Ids that do not belong to the dialogue are refused by the server with the position.
"""

from __future__ import annotations

import json
import sys
from itertools import zip_longest
from typing import Any

import httpx
import numpy as np
import pytest

from tests.support.http import app_of, settings_of
from tests.support.scripted_engine import ScriptedEngine, Step, logprobs_of, one_sequence
from tests.support.tokenizers import tokenizer
from tokenwire.client import AsyncClient, AsyncConversation
from tokenwire.client.dialogue import Parse
from tokenwire.engine.base import EngineRequest, WeightSpan
from tokenwire.errors import PrefixMismatchError
from tokenwire.render.tokenizer import Tokenizer
from tokenwire.server.app import create_app
from tokenwire.server.build import build_server

TEMPLATE = """\
{%- if tools %}<|im_start|>system
You have these tools:{% for tool in tools %}
{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.role == "assistant" %}{{ (message.content or "").split("</think>")[-1] }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}
{%- else %}{{ message.content }}{% endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Look a word up.",
            "parameters": {"type": "object", "properties": {"word": {"type": "string"}, "nr": {"type": "integer"}}},
        },
    }
]
END = "<|im_end|>"


class Model:
    """Says the next text of `script`, one character a token where there is one for it, then ends its turn."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.script: list[str] = []
        self.answers = 0

    def __call__(self, request: EngineRequest) -> list[Step]:
        ids = [i for c in self.script.pop(0) for i in self.tokenizer.encode(c, add_special_tokens=False)]
        ids += self.tokenizer.encode(END, add_special_tokens=False)
        self.answers += 1
        scores = logprobs_of([[(token_id, -self.answers - at / 1000)] for at, token_id in enumerate(ids)])
        spans = [WeightSpan(f"step-{self.answers}", 0, len(ids))]
        return one_sequence(
            ids, step_size=len(ids), logprobs=scores, finish_reason="stop", stop_reason=None, weight_versions=spans
        )


class Setup:
    """A token server, and a front end without an engine that renders and derenders; both in memory."""

    def __init__(self) -> None:
        self.tokenizer = tokenizer("smol")
        self.model = Model(self.tokenizer)
        eos = self.tokenizer.encode(END, add_special_tokens=False)
        self.engine = ScriptedEngine(self.model, eos_token_ids=tuple(eos), max_model_len=100_000)
        chat = {"tool_call_parser": "hermes", "enable_auto_tool_choice": True, "chat_template": TEMPLATE}
        self.server = app_of(self.engine, tokenizer=self.tokenizer, **chat)
        self.front = create_app(build_server(settings_of(**chat), tokenizer=self.tokenizer))

    def conversation(self, parse: Parse, **options: Any) -> AsyncConversation:
        server, front = (
            AsyncClient("http://x", transport=httpx.ASGITransport(app)) for app in (self.server, self.front)
        )
        return AsyncConversation(server, render_client=front, tools=TOOLS, parse=parse, **options)


def drifted(exact: list[int], anew: list[int]) -> int:
    """Ids in which an encoding anew differs."""
    return sum(a != b for a, b in zip_longest(exact, anew))


def lookup(word: str, nr: int) -> dict[str, Any]:
    return {"word": word, "meaning": f"no. {nr}, über\u2009alles"}


@pytest.mark.parametrize("parse", ["generate", "derender"])
async def test_twenty_turns_with_tools_drift_by_no_token(parse: Parse) -> None:
    setup = Setup()
    chat = setup.conversation(parse, messages=[{"role": "system", "content": "Be terse."}])
    drift_anew = []
    known: list[int] = []
    for number in range(20):
        call = json.dumps({"name": "lookup", "arguments": {"word": f"wört {number}", "nr": number}}, ensure_ascii=False)
        setup.model.script = [f"Looking.\n<tool_call>\n{call}\n</tool_call>", f"It is no. {number}: überall 🚀."]
        chat.user(f"What is wört {number}?")
        first = await chat.generate()
        assert first.prompt_token_ids[: len(known)] == known
        assert [result.failed for result in await chat.run_tools({"lookup": lookup})] == [False]
        known = [*first.prompt_token_ids, *first.token_ids]
        second = await chat.generate()
        assert second.prompt_token_ids[: len(known)] == known
        assert second.message.content == f"It is no. {number}: überall 🚀."
        known = [*second.prompt_token_ids, *second.token_ids]
        assert chat.token_ids == known
        anew = await chat.render_without_prefix()
        drift_anew.append(drifted(known, anew[: len(known)]))
    sys.stdout.write(f"{len(known)} ids, 0 drifted; encoded anew, {drift_anew[-1]} would differ at their place\n")
    assert all(earlier < later for earlier, later in zip(drift_anew, drift_anew[1:], strict=False))
    assert drift_anew[-1] > len(known) // 4
    engine_prompts = [request.prompt_token_ids for request in setup.engine.requests]
    assert engine_prompts == [turn.prompt_token_ids for turn in chat.turns]


async def test_the_record_holds_what_the_engine_sampled() -> None:
    setup = Setup()
    chat = setup.conversation("generate")
    setup.model.script = ["<think>hm</think>One.", "Two."]
    chat.user("a")
    await chat.generate()
    chat.user("b")
    await chat.generate()
    record = chat.record()
    sampled = record.token_ids[record.loss_mask].tolist()
    assert setup.tokenizer.decode(sampled) == "<think>hm</think>One.<|im_end|>Two.<|im_end|>"
    starts = [len(turn.prompt_token_ids) for turn in chat.turns]
    sizes = [len(turn.token_ids) for turn in chat.turns]
    expected = np.concatenate([[-n - at / 1000 for at in range(size)] for n, size in zip((1, 2), sizes, strict=True)])
    np.testing.assert_allclose(record.logprobs[record.loss_mask], expected, rtol=1e-6)
    assert [(s.version, s.start, s.end) for s in record.weight_versions] == [
        (f"step-{n}", start, start + size) for n, (start, size) in enumerate(zip(starts, sizes, strict=True), 1)
    ]
    # The template drops reasoning of earlier answers; the ids keep it, and the mask covers it.
    assert "hm" not in setup.tokenizer.decode(await chat.render_without_prefix())


async def test_ids_of_another_dialogue_are_refused_with_the_position() -> None:
    setup = Setup()
    chat = setup.conversation("generate", messages=[{"role": "system", "content": "One thing."}])
    setup.model.script = ["Yes."]
    chat.user("a")
    turn = await chat.generate()
    chat.messages[0]["content"] = "Another thing."
    chat.user("b")
    with pytest.raises(PrefixMismatchError) as caught:
        await chat.generate()
    assert 0 < caught.value.position < len(turn.prompt_token_ids)
