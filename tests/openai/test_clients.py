"""The `openai` and `anthropic` Python clients against a server process, unchanged but for the address.

1. OpenAI: chat, streamed chat with usage, n and logprobs, a tool's whole round, structured answers, completions,
   errors.
2. OpenAI responses: whole, streamed with a tool call, refused state.
3. Anthropic: messages, streamed messages, thinking, a tool's whole round, token count, errors.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

import openai
from tests.openai.scripted import WEATHER
from tests.openai.scripted_server import COUNTED, GREETING, KEY, NUM_GREETING_TOKENS
from tokenwire.client import Client

ASK: list[Any] = [{"role": "user", "content": "What is the weather in Tokyo?"}]
GREET: list[Any] = [{"role": "user", "content": "Hello"}]
OPENAI_TOOLS: list[Any] = [WEATHER]
FLAT_TOOLS: list[Any] = [{"type": "function", **WEATHER["function"]}]  # type: ignore[dict-item]
ANTHROPIC_TOOLS: list[Any] = [{"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}]  # type: ignore[index]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.openai.scripted_server"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture
def gpt(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
def claude(address: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=address, api_key=KEY, max_retries=0) as client:
        yield client


# --- 1. OpenAI


def test_openai_chats(gpt: openai.OpenAI) -> None:
    reply = gpt.chat.completions.create(model="m", messages=GREET, max_tokens=50)
    assert reply.choices[0].message.content == GREETING
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == NUM_GREETING_TOKENS


def test_openai_streams_a_chat(gpt: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    stream = gpt.chat.completions.create(
        model="m", messages=GREET, stream=True, stream_options=options, logprobs=True, top_logprobs=1, n=2
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    for index in range(2):
        choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert "".join(choice.delta.content or "" for choice in choices) == GREETING
        scored = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content or ()]
        assert len(scored) == NUM_GREETING_TOKENS
        assert GREETING in "".join(entry.token for entry in scored)
        assert choices[-1].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 2 * NUM_GREETING_TOKENS


def test_openai_helper_puts_a_stream_with_tools_together(gpt: openai.OpenAI) -> None:
    with gpt.chat.completions.stream(model="m", messages=ASK, tools=OPENAI_TOOLS) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    assert final.message.content == "Let me look.\n"
    assert final.message.tool_calls is not None
    assert json.loads(final.message.tool_calls[0].function.arguments) == {"city": "Tōkyō"}
    assert final.finish_reason == "tool_calls"
    assert any(event.type == "tool_calls.function.arguments.delta" for event in events)


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}])
def test_openai_goes_round_with_a_tool(gpt: openai.OpenAI, choice: Any) -> None:
    reply = gpt.chat.completions.create(model="m", messages=ASK, tools=OPENAI_TOOLS, tool_choice=choice)
    message = reply.choices[0].message
    assert message.tool_calls is not None
    call = message.tool_calls[0]
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"city": "Tōkyō"}
    assert message.model_dump()["reasoning"] == "A tool knows."
    turns = [*ASK, message, {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}]
    after = gpt.chat.completions.create(model="m", messages=turns, tools=OPENAI_TOOLS)
    assert after.choices[0].message.content == "It is 18 degrees."


def test_openai_gets_what_a_schema_says(gpt: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    format: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}}
    reply = gpt.chat.completions.create(model="m", messages=GREET, response_format=format)
    assert json.loads(reply.choices[0].message.content or "") == {"city": "Paris"}


def test_openai_completes_prompts(gpt: openai.OpenAI) -> None:
    reply = gpt.completions.create(model="m", prompt=["Count:", "Count again:"], logprobs=1, echo=True)
    assert [choice.text for choice in reply.choices] == [f"Count:{COUNTED}", f"Count again:{COUNTED}"]
    scores = reply.choices[0].logprobs
    assert scores is not None
    assert scores.tokens is not None
    assert "".join(scores.tokens).startswith(f"Count:{COUNTED}")
    stream = gpt.completions.create(model="m", prompt="Count:", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == COUNTED


def test_openai_raises_its_own_errors(gpt: openai.OpenAI, address: str) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        gpt.chat.completions.create(model="nope", messages=GREET)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        gpt.chat.completions.create(model="m", messages=GREET, temperature=7)
    with pytest.raises(openai.AuthenticationError), openai.OpenAI(base_url=f"{address}/v1", api_key="wrong") as other:
        other.chat.completions.create(model="m", messages=GREET)


# --- 2. OpenAI's responses


def test_openai_gets_a_response(gpt: openai.OpenAI) -> None:
    response = gpt.responses.create(model="m", input="Hello")
    assert (response.output_text, response.status) == (GREETING, "completed")
    with pytest.raises(openai.BadRequestError, match="stores no responses"):
        gpt.responses.create(model="m", input="Hello", previous_response_id=response.id)
    with pytest.raises(openai.BadRequestError, match="stores no responses"):
        gpt.responses.retrieve(response.id)


def test_openai_streams_a_response_with_a_call_and_goes_on(gpt: openai.OpenAI) -> None:
    with gpt.responses.stream(model="m", input=ASK, tools=FLAT_TOOLS) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert "response.output_text.delta" in kinds
    assert "response.function_call_arguments.delta" in kinds
    assert kinds[-1] == "response.completed"
    call = final.output[-1]
    assert call.type == "function_call"
    assert json.loads(call.arguments) == {"city": "Tōkyō"}
    given: list[Any] = [*ASK, *(item.model_dump(exclude={"parsed_arguments"}) for item in final.output)]
    given.append({"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"})
    assert gpt.responses.create(model="m", input=given, tools=FLAT_TOOLS).output_text == "It is 18 degrees."


# --- 3. Anthropic


def test_anthropic_gets_a_message(claude: anthropic.Anthropic) -> None:
    message = claude.messages.create(model="m", max_tokens=50, messages=GREET, system="Be kind.")
    assert [block.type for block in message.content] == ["text"]
    assert message.content[0].text == GREETING  # type: ignore[union-attr]
    assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", NUM_GREETING_TOKENS)


def test_anthropic_streams_a_message(claude: anthropic.Anthropic) -> None:
    with claude.messages.stream(model="m", max_tokens=50, messages=GREET) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == GREETING  # type: ignore[union-attr]
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens == NUM_GREETING_TOKENS


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("choice", ["auto", "any", "tool"])
def test_anthropic_goes_round_with_a_tool(claude: anthropic.Anthropic, choice: str, streamed: bool) -> None:
    tool_choice: Any = {"type": choice, "name": "get_weather"} if choice == "tool" else {"type": choice}
    asked: dict[str, Any] = {"model": "m", "max_tokens": 200, "tools": ANTHROPIC_TOOLS}
    if streamed:
        with claude.messages.stream(messages=ASK, tool_choice=tool_choice, **asked) as stream:
            message = stream.get_final_message()
    else:
        message = claude.messages.create(messages=ASK, tool_choice=tool_choice, **asked)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    call = message.content[-1]
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("get_weather", {"city": "Tōkyō"})
    assert message.stop_reason == "tool_use"
    turns = [
        *ASK,
        {"role": "assistant", "content": [block.model_dump(exclude_unset=True) for block in message.content]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "18 degrees"}]},
    ]
    after = claude.messages.create(messages=turns, **asked)
    assert after.content[0].text == "It is 18 degrees."  # type: ignore[union-attr]


def test_anthropic_counts_tokens(claude: anthropic.Anthropic) -> None:
    counted = claude.messages.count_tokens(model="m", messages=ASK, tools=ANTHROPIC_TOOLS)
    message = claude.messages.create(model="m", max_tokens=200, messages=ASK, tools=ANTHROPIC_TOOLS)
    assert counted.input_tokens == message.usage.input_tokens


def test_anthropic_raises_its_own_errors(claude: anthropic.Anthropic, address: str) -> None:
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        claude.messages.create(model="nope", max_tokens=5, messages=GREET)
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        claude.messages.create(model="m", max_tokens=0, messages=GREET)
    with pytest.raises(anthropic.AuthenticationError), anthropic.Anthropic(base_url=address, api_key="no") as other:
        other.messages.create(model="m", max_tokens=5, messages=GREET)


# --- beside them


def test_our_own_client_and_theirs_share_the_server(address: str) -> None:
    with Client(address, api_key=KEY) as client:
        assert client.models()
    assert httpx.get(f"{address}/health").status_code == 200
