"""Token-exact conversations on a scripted server.

1. Every prompt begins with exactly the ids before it, over many turns with tools, sync and async, on both wires.
2. The scripted model spells a text as the tokenizer would not; encoding anew would drift, the conversation does not.
3. The record has ids, loss mask, scores and weight versions in the places where they were sampled.
4. Tool calls: run, told what the model got wrong, raised or told what the tool got wrong; each call answered once.
5. What a server lacks is said clearly, and a turn that fails changes nothing.
6. Records go through JSONL and npz unchanged.
7. A fork shares the past and nothing else.
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.client.scripted_app import AB, END, ROLES, ToyServer, encode, error
from tokenwire.client import AsyncClient, AsyncConversation, BadReplyError, Client, Conversation, TrainingRecord
from tokenwire.errors import InvalidRequestError, PrefixMismatchError
from tokenwire.wire.generate import FunctionCall, Message, ToolCall

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
SPELLED_OUT = [ord("a"), ord("b")]  # the tokenizer would write AB


def said(text: str) -> list[int]:
    """Ids a model sampled: byte by byte, then END."""
    return [*text.encode(), END]


@pytest.fixture(params=["json", "msgpack"])
async def chat(request: pytest.FixtureRequest, toy: ToyServer) -> AsyncConversation:
    client = AsyncClient("http://toy", wire=request.param, transport=httpx.ASGITransport(toy.app))
    return AsyncConversation(client, [{"role": "system", "content": "be brief"}], tools=TOOLS, model="toy")


def sent(toy: ToyServer, path: str) -> list[dict[str, Any]]:
    return [body for where, _, body in toy.requests if where == path]


async def test_twenty_turns_with_tools_drift_by_no_token(chat: AsyncConversation, toy: ToyServer) -> None:
    known: list[int] = []
    for turn_number in range(20):
        toy.script = [said(f'abCALL add {{"a": {turn_number}, "b": 1}}'), said("it is ab")]
        chat.user(f"grab {turn_number}")
        turn = await chat.generate()
        assert turn.prompt_token_ids[: len(known)] == known
        results = await chat.run_tools({"add": lambda a, b: a + b})
        assert [result.content for result in results] == [str(turn_number + 1)]
        known = [*turn.prompt_token_ids, *turn.token_ids]
        final = await chat.generate()
        assert final.prompt_token_ids[: len(known)] == known
        assert final.message.content == "it is ab"
        known = [*final.prompt_token_ids, *final.token_ids]
    assert chat.token_ids == known
    prompts = [body["token_ids"] for body in sent(toy, "/inference/v1/generate")]
    assert all(later[: len(earlier)] == earlier for earlier, later in zip(prompts, prompts[1:], strict=False))
    anew = await chat.render_without_prefix()
    assert anew[: len(known)] != known
    assert len(chat.turns) == 40


async def test_the_message_is_appended_as_the_server_parsed_it(chat: AsyncConversation, toy: ToyServer) -> None:
    toy.script = [said('sureCALL add {"a": 1}')]
    chat.user("hi")
    turn = await chat.generate()
    assert chat.messages[-1] == {
        "role": "assistant",
        "content": "sure",
        "tool_calls": [
            {"id": turn.tool_calls[0].id, "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
        ],
    }


async def test_the_record_has_everything_where_it_was_sampled(chat: AsyncConversation, toy: ToyServer) -> None:
    toy.script = [said("ab"), said("c")]
    chat.user("one")
    first = await chat.generate()
    chat.user("two")
    second = await chat.generate()
    chat.user("waits for the next prompt")
    record = chat.record()
    ids = record.token_ids.tolist()
    assert ids == [*second.prompt_token_ids, *second.token_ids]
    start_1, start_2 = len(first.prompt_token_ids), len(second.prompt_token_ids)
    sampled = [*range(start_1, start_1 + 3), *range(start_2, start_2 + 2)]
    assert np.flatnonzero(record.loss_mask).tolist() == sampled
    assert [ids[at] for at in sampled] == [*SPELLED_OUT, END, ord("c"), END]
    assert np.flatnonzero(~np.isnan(record.logprobs)).tolist() == sampled
    np.testing.assert_allclose(record.logprobs[sampled], [-0.5, -1.5, -2.5, -0.5, -1.5])
    assert [(s.version, s.start, s.end) for s in record.weight_versions] == [
        ("w1", start_1, start_1 + 3),
        ("w2", start_2, start_2 + 2),
    ]
    index, labels = record.weight_version_index()
    assert labels == ["w1", "w2"]
    assert index[sampled].tolist() == [0, 0, 0, 1, 1]
    assert (index == -1).sum() == len(ids) - 5
    assert record.messages == chat.messages[:-1]


async def test_what_was_rendered_and_what_the_caller_wants_reach_generate(
    chat: AsyncConversation, toy: ToyServer
) -> None:
    toy.script = [said("x")]
    chat.user("hi")
    await chat.generate({"temperature": 0.0, "max_tokens": 7})
    (body,) = sent(toy, "/inference/v1/generate")
    assert body["sampling_params"] == {"max_tokens": 7, "stop": ["\n"], "logprobs": 0, "temperature": 0.0}
    assert body["output_mode"] == "derender"
    (render,) = sent(toy, "/v1/chat/completions/render")
    assert render["tools"] == TOOLS
    assert "prefix_token_ids" not in render


async def test_an_answer_cut_by_length_is_closed_by_the_template_not_by_the_record(
    chat: AsyncConversation, toy: ToyServer
) -> None:
    toy.script = [list(b"cut of"), said("x")]
    chat.user("hi")
    first = await chat.generate()
    chat.user("go on")
    second = await chat.generate()
    start = len(first.prompt_token_ids)
    assert second.prompt_token_ids[start : start + 7] == [*b"cut of", END]
    assert not chat.record().loss_mask[start + 6]


async def test_messages_by_the_derender_route_come_out_the_same(toy: ToyServer) -> None:
    async with AsyncClient("http://toy", transport=httpx.ASGITransport(toy.app)) as client:
        chat = AsyncConversation(client, tools=TOOLS, parse="derender")
        toy.script = [said('yCALL add {"a": 1}')]
        chat.user("hi")
        turn = await chat.generate()
    assert turn.message.content == "y"
    assert turn.tool_calls[0].function.arguments == '{"a": 1}'
    (body,) = sent(toy, "/v1/chat/completions/derender")
    assert body["prompt_token_ids"] == turn.prompt_token_ids
    assert body["generate_response"]["choices"][0]["token_ids"] == turn.token_ids
    assert body["chat_request"]["tools"] == TOOLS


def test_the_blocking_conversation_does_the_same(sync_client: Client, toy: ToyServer) -> None:
    chat = Conversation(sync_client, tools=TOOLS)
    toy.script = [said('CALL add {"a": 2, "b": 3}'), said("5")]
    chat.user("2+3?")
    while chat.generate().tool_calls:
        chat.run_tools({"add": lambda a, b: a + b})
    assert [message["role"] for message in chat.messages] == ["user", "assistant", "tool", "assistant"]
    assert chat.messages[2]["content"] == "5"
    assert chat.turns[1].prompt_token_ids[: len(chat.turns[0].prompt_token_ids)] == chat.turns[0].prompt_token_ids
    assert AB not in encode("2+3?")
    assert chat.record().loss_mask.sum() == sum(len(turn.token_ids) for turn in chat.turns)
    with pytest.raises(InvalidRequestError, match="no new message"):
        chat.generate()
    assert chat.render_without_prefix()[-1] == ROLES["assistant"]


# --- tools --------------------------------------------------------------------------------------------------------


async def test_async_tools_run_at_the_same_time(chat: AsyncConversation, toy: ToyServer) -> None:
    toy.script = [said('CALL add {"a": 1}')]
    chat.user("hi")
    await chat.generate()

    async def add(a: int) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"sum": a}

    results = await chat.run_tools({"add": add})
    assert [(r.content, r.failed) for r in results] == [('{"sum": 1}', False)]
    assert await chat.run_tools({"add": add}) == []


@pytest.mark.parametrize(
    "call, told",
    [
        ("CALL nope {}", "there is no tool 'nope'; the tools are ['add']"),
        ("CALL add {broken", "arguments of add are not valid JSON"),
        ("CALL add [1]", "must be a JSON object"),
        ('CALL add {"c": 1}', "missing a required argument: 'a'"),
    ],
)
async def test_what_the_model_got_wrong_is_told_to_the_model(
    chat: AsyncConversation, toy: ToyServer, call: str, told: str
) -> None:
    toy.script = [said(call)]
    chat.user("hi")
    await chat.generate()
    (result,) = await chat.run_tools({"add": lambda a: a})
    assert result.failed
    assert told in result.content
    assert chat.messages[-1]["role"] == "tool"
    assert chat.messages[-1]["tool_call_id"] == result.call.id


async def test_what_a_tool_got_wrong_is_raised_or_told_as_asked(chat: AsyncConversation, toy: ToyServer) -> None:
    toy.script = [said('CALL add {"a": 1}')]
    chat.user("hi")
    await chat.generate()

    def add(a: int) -> int:
        return a // 0

    before = len(chat.messages)
    with pytest.raises(ZeroDivisionError):
        await chat.run_tools({"add": add})
    assert len(chat.messages) == before
    (result,) = await chat.run_tools({"add": add}, on_error="tell")
    assert result.content.startswith("Error: ZeroDivisionError")


async def test_all_tools_have_ended_before_an_error_gets_out(chat: AsyncConversation, toy: ToyServer) -> None:
    ended: list[str] = []
    first = True

    async def add() -> str:
        nonlocal first
        if first:
            first = False
            raise RuntimeError("the first call breaks")
        await asyncio.sleep(0.01)
        ended.append("second")
        return "ok"

    toy.script = [said("x")]
    chat.user("hi")
    turn = await chat.generate()
    calls = [ToolCall(id=str(i), function=FunctionCall(name="add", arguments="{}")) for i in range(2)]
    chat.turns[-1] = dataclasses.replace(turn, message=Message(tool_calls=calls))
    with pytest.raises(RuntimeError, match="the first call breaks"):
        await chat.run_tools({"add": add})
    assert ended == ["second"]


# --- what a server lacks ------------------------------------------------------------------------------------------


async def test_a_server_that_ignores_the_prefix_is_found_out(chat: AsyncConversation, toy: ToyServer) -> None:
    toy.knows_prefix = False
    toy.script = [said("ab")]
    chat.user("hi")
    turn = await chat.generate()
    chat.user("again")
    before = list(chat.messages)
    with pytest.raises(PrefixMismatchError, match="does not know prefix_token_ids") as caught:
        await chat.generate()
    assert caught.value.position == len(turn.prompt_token_ids)
    assert chat.messages == before


async def test_a_prefix_the_server_refuses_says_where(chat: AsyncConversation, toy: ToyServer) -> None:
    toy.script = [said("x")]
    chat.user("hi")
    await chat.generate()
    chat.user("again")
    refusal = PrefixMismatchError(12, "the template moves the system message")
    toy.failures = [error(409, refusal.message, "ConflictError", "prefix_token_ids")]
    with pytest.raises(PrefixMismatchError, match="moves the system message") as caught:
        await chat.generate()
    assert caught.value.position == 12


async def test_a_server_without_the_derender_level_is_found_out(chat: AsyncConversation, toy: ToyServer) -> None:
    toy.knows_derender_mode = False
    chat.user("hi")
    with pytest.raises(BadReplyError, match='answered with "tokens".*parse="derender"'):
        await chat.generate()
    assert [message["role"] for message in chat.messages] == ["system", "user"]
    assert chat.token_ids == []


async def test_missing_scores_are_an_error_unless_none_were_wanted(toy: ToyServer) -> None:
    async with AsyncClient("http://toy", transport=httpx.ASGITransport(toy.app)) as client:
        chat = AsyncConversation(client, sampling_params={"logprobs": None})
        chat.user("hi")
        toy.script = [said("x")]
        assert (await chat.generate()).logprobs is None
        assert np.isnan(chat.record().logprobs).all()
        assert chat.record().loss_mask.sum() == 2


@pytest.mark.parametrize("options", [{"sampling_params": {"n": 2}}, {"n": 2}, {"include_reasoning": False}])
def test_options_a_dialogue_cannot_have_are_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        Conversation(Client("http://x"), **options)


# --- records and forks --------------------------------------------------------------------------------------------


async def test_records_go_through_jsonl_and_npz_unchanged(
    chat: AsyncConversation, toy: ToyServer, tmp_path: Path
) -> None:
    toy.script = [said("ab")]
    chat.user("hi")
    await chat.generate()
    record = chat.record()
    file = io.BytesIO()
    record.append_jsonl(file)
    record.append_jsonl(file)
    lines = file.getvalue().splitlines()
    assert len(lines) == 2
    twin = TrainingRecord.from_json(lines[1])
    for name in ("token_ids", "loss_mask", "logprobs"):
        np.testing.assert_array_equal(getattr(twin, name), getattr(record, name))
    assert twin.weight_versions == record.weight_versions
    assert twin.messages == record.messages
    record.save_npz(tmp_path / "r.npz")
    with np.load(tmp_path / "r.npz", allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["token_ids"], record.token_ids)
        np.testing.assert_array_equal(arrays["logprobs"], record.logprobs)
        assert arrays["weight_version_labels"][arrays["weight_version"][record.loss_mask]].tolist() == ["w1"] * 3


async def test_a_fork_shares_the_past_and_nothing_else(chat: AsyncConversation, toy: ToyServer) -> None:
    toy.script = [said("x"), said("left"), said("right")]
    chat.user("hi")
    await chat.generate()
    twin = chat.fork()
    chat.user("l")
    twin.user("r")
    left, right = await chat.generate(), await twin.generate()
    assert (left.message.content, right.message.content) == ("left", "right")
    assert chat.messages[3]["content"] == "l"
    assert twin.messages[3]["content"] == "r"
    assert len(chat.turns) == len(twin.turns) == 2
    shared = len(chat.turns[0].prompt_token_ids) + 2
    assert chat.token_ids[:shared] == twin.token_ids[:shared]


def test_an_empty_dialogue_has_an_empty_record() -> None:
    record = Conversation(Client("http://x")).record()
    assert len(record) == 0
    assert len(TrainingRecord.from_json(record.to_json())) == 0
