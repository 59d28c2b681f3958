"""Token-exact conversations.

1. Every prompt begins with exactly the ids before it, over twenty turns with tool calls, for every format.
2. What is added is what the template writes, and no more: the part of the turn's end that the ids lack, later messages,
   the generation prompt. 3. Encoding the text anew would have drifted. 4. Any ids at all can be an answer.
5. Ids that belong to another conversation, or end elsewhere, are refused with the position.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.render.dialogues import MODELS, TOOL, Dialogue, models_at_hand
from tests.support.tokenizers import tokenizer
from tokenwire.errors import PrefixMismatchError
from tokenwire.render.chat import ChatInput
from tokenwire.render.encoders import EncoderOptions, load_encoder
from tokenwire.render.prefix import Prefix, continue_prefix

TURNS = 20
CUT_OFF = (4, 9)
"""Turns that end without a stop token."""


def _continue(dialogue: Dialogue) -> list[int]:
    prefix = Prefix(dialogue.ids, dialogue.num_covered)
    return continue_prefix(dialogue.encoder, dialogue.tokenizer, dialogue.chat(), prefix)


@pytest.mark.parametrize("name", models_at_hand())
def test_twenty_turns_keep_every_id_where_encoding_anew_would_drift(name: str) -> None:
    dialogue, rng = Dialogue.begin(name), random.Random(name)
    drifted = 0
    for turn in range(TURNS):
        dialogue.answer(turn, rng, stops=turn not in CUT_OFF)
        prompt = _continue(dialogue)
        assert prompt[: len(dialogue.ids)] == dialogue.ids
        anew = dialogue.encoded()
        same = next((i for i, (a, b) in enumerate(zip(anew, dialogue.ids, strict=False)) if a != b), len(dialogue.ids))
        drifted += len(dialogue.ids) - same
        dialogue.ids = prompt
    assert drifted > 0, "these dialogues are made to drift"


@pytest.mark.parametrize("name", models_at_hand())
@pytest.mark.parametrize("stops", [True, False])
def test_what_is_added_is_the_end_of_the_whole_rendering(name: str, stops: bool) -> None:
    """The rendering of the messages ends with the added ids' text, from somewhere within the turn's end on."""
    dialogue, rng = Dialogue.begin(name), random.Random(0)
    for turn in range(4):
        dialogue.answer(turn, rng, stops=stops)
        prompt = _continue(dialogue)
        added, whole = (
            dialogue.tokenizer.decode(prompt[len(dialogue.ids) :]),
            dialogue.tokenizer.decode(dialogue.encoded()),
        )
        assert added
        assert whole.endswith(added)
        dialogue.ids = prompt


ENDINGS = {
    "after its own end token": ("<|im_end|>", "\n<|im_start|>user\nNext<|im_end|>\n<|im_start|>assistant\n"),
    "cut off": ("", "<|im_end|>\n<|im_start|>user\nNext<|im_end|>\n<|im_start|>assistant\n"),
    "after another end token": ("<|endoftext|>", "\n<|im_start|>user\nNext<|im_end|>\n<|im_start|>assistant\n"),
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS.keys())
def test_the_turn_is_ended_only_as_far_as_the_ids_have_not_ended_it(ending: tuple[str, str]) -> None:
    stop, expected = ending
    smol = tokenizer("smol")
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
    encoder = load_encoder("jinja", smol)
    prompt = encoder.encode(ChatInput(messages=messages)).prompt
    assert isinstance(prompt, str)
    ids = smol.encode(f"{prompt}Hello there{stop}", add_special_tokens=False)
    chat = ChatInput(messages=[*messages, {"role": "assistant", "content": "?"}, {"role": "user", "content": "Next"}])
    endoftext = smol.piece_to_id("<|endoftext|>")
    assert endoftext is not None
    continued = continue_prefix(encoder, smol, chat, Prefix(ids, 2), [endoftext])
    assert smol.decode(continued[len(ids) :]) == expected


@settings(max_examples=60, deadline=None)
@given(answer=st.lists(st.integers(3, 49151), max_size=12), stops=st.booleans(), calls=st.booleans())
def test_any_ids_can_be_an_answer(answer: list[int], stops: bool, calls: bool) -> None:
    dialogue = Dialogue.begin("thinking")
    end = dialogue.tokenizer.eos_token_id
    assert end is not None
    dialogue.ids = [*dialogue.ids, *answer, *([end] if stops else [])]
    call = {"id": "c1", "type": "function", "function": {"name": "get", "arguments": "{}"}}
    message: dict[str, Any] = {"role": "assistant", "content": "", **({"tool_calls": [call]} if calls else {})}
    reply = {"role": "tool", "tool_call_id": "c1", "content": "r"} if calls else {"role": "user", "content": "Go on"}
    dialogue.messages = [*dialogue.messages, message, reply]
    dialogue.num_covered = len(dialogue.messages) - 1
    prompt = _continue(dialogue)
    assert prompt[: len(dialogue.ids)] == dialogue.ids
    added = dialogue.tokenizer.decode(prompt[len(dialogue.ids) :])
    body = "\n<tool_response>\nr\n</tool_response>" if calls else "\nGo on"
    assert added.endswith(f"<|im_start|>user{body}<|im_end|>\n<|im_start|>assistant\n")


def test_several_new_messages_are_added_at_once() -> None:
    dialogue = Dialogue.begin("thinking")
    dialogue.answer(0, random.Random(1), stops=True)
    dialogue.messages += [{"role": "tool", "content": "more"}, {"role": "user", "content": "And?"}]
    added = dialogue.tokenizer.decode(_continue(dialogue)[len(dialogue.ids) :])
    results = "<tool_response>\nresult 0\n</tool_response>\n<tool_response>\nmore\n</tool_response>"
    assert (
        added == f"\n<|im_start|>user\n{results}<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_prefix_may_end_in_a_rendered_message_or_in_the_opening_of_an_answer() -> None:
    dialogue = Dialogue.begin("thinking")
    opened = dialogue.ids
    dialogue.num_covered = 2
    assert _continue(dialogue) == opened
    closed_text = dialogue.tokenizer.decode(opened).removesuffix("<|im_start|>assistant\n")
    dialogue.ids = dialogue.tokenizer.encode(closed_text, add_special_tokens=False)
    assert _continue(dialogue) == opened


def _mismatch(dialogue: Dialogue) -> PrefixMismatchError:
    with pytest.raises(PrefixMismatchError) as caught:
        _continue(dialogue)
    return caught.value


def test_ids_of_another_conversation_are_refused_where_they_first_differ() -> None:
    dialogue = Dialogue.begin("thinking")
    dialogue.answer(0, random.Random(1), stops=True)
    right = dialogue.ids
    dialogue.ids = [*right[:5], right[5] + 1, *right[6:]]
    assert _mismatch(dialogue).position == 5


def test_changed_tools_are_refused() -> None:
    dialogue = Dialogue.begin("thinking")
    dialogue.answer(0, random.Random(1), stops=True)
    chat = dialogue.chat()
    other = ChatInput(messages=chat.messages, tools=[TOOL, TOOL])
    with pytest.raises(PrefixMismatchError):
        continue_prefix(dialogue.encoder, dialogue.tokenizer, other, Prefix(dialogue.ids, dialogue.num_covered))


def test_a_prefix_that_ends_inside_a_rendered_message_is_refused() -> None:
    dialogue = Dialogue.begin("thinking")
    dialogue.ids = dialogue.ids[:-6]
    dialogue.num_covered = 2
    assert _mismatch(dialogue).position == len(dialogue.ids)


def test_a_template_that_ends_its_turns_otherwise_in_the_middle_is_refused() -> None:
    model = MODELS["smol"]
    loaded, _ = model.load()
    text = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if not loop.last %};{% else %}.{% endif %}{% endfor %}"
    )
    encoder = load_encoder("jinja", loaded, EncoderOptions(chat_template=text))
    messages = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    with pytest.raises(PrefixMismatchError, match="otherwise"):
        continue_prefix(encoder, loaded, ChatInput(messages=messages), Prefix([5, 6], 1))
