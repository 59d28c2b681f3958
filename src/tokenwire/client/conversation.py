"""Token-exact dialogues with tools: every prompt begins with exactly the ids that were sent and sampled before it.

chat = Conversation(client, tools=[...])
chat.user("What is the weather in Oslo?")
while chat.generate().tool_calls:
    chat.run_tools({"get_weather": get_weather})
chat.record().save_npz("rollout.npz")
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Self

from tokenwire.client.aio import AsyncClient
from tokenwire.client.calls import response_for_derender
from tokenwire.client.dialogue import Dialogue, Parse, Turn, as_messages, message_of
from tokenwire.client.errors import BadReplyError
from tokenwire.client.record import TrainingRecord
from tokenwire.client.replies import DerenderResponse, GenerateResponse, Rendered
from tokenwire.client.sync import Client
from tokenwire.client.tools import OnError, ToolResult, Tools, run_tool, run_tool_async
from tokenwire.wire.generate import Message, ToolCall


class _Base:
    """What sync and async conversations share: the dialogue, and what needs no server."""

    def __init__(
        self,
        messages: Sequence[Mapping[str, Any]],
        model: str | None,
        tools: Sequence[Mapping[str, Any]] | None,
        sampling_params: Mapping[str, Any] | None,
        parse: Parse,
        chat_fields: Mapping[str, Any],
    ) -> None:
        fields = dict(chat_fields) | ({"tools": as_messages(tools)} if tools else {})
        self._dialogue = Dialogue(model, fields, dict(sampling_params or {}), as_messages(messages))
        self._parse: Parse = parse

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The dialogue as chat messages, answers and tool results included."""
        return self._dialogue.messages

    @property
    def token_ids(self) -> list[int]:
        """Ids up to the end of the last answer, exactly as they were sent and sampled."""
        return self._dialogue.token_ids

    @property
    def turns(self) -> list[Turn]:
        return self._dialogue.turns

    def add(self, *messages: Mapping[str, Any]) -> None:
        """Append messages of any role."""
        self._dialogue.messages.extend(as_messages(messages))

    def user(self, content: str | Sequence[Mapping[str, Any]]) -> None:
        self.add({"role": "user", "content": content})

    def pending_tool_calls(self) -> list[ToolCall]:
        """Calls of the last answer that no tool message answers yet."""
        if not self.turns:
            return []
        later = self.messages[self._dialogue.covered :]
        answered = {message.get("tool_call_id") for message in later if message.get("role") == "tool"}
        return [call for call in self.turns[-1].tool_calls if call.id not in answered]

    def _add_results(self, results: list[ToolResult]) -> list[ToolResult]:
        self.add(*(result.as_message() for result in results))
        return results

    def record(self) -> TrainingRecord:
        """Ids, loss mask, scores and weight versions of everything up to the last answer."""
        return self._dialogue.record()

    def _accept(
        self, rendered: Rendered, response: GenerateResponse, message: Message, sampling: Mapping[str, Any]
    ) -> Turn:
        scored = sampling.get("logprobs") is not None
        return self._dialogue.accept(rendered.token_ids, response, message, scored=scored)

    def _derender_request(self, prompt: list[int], response: GenerateResponse) -> dict[str, Any]:
        return {
            "model": self._dialogue.model,
            "generate_response": response_for_derender(response),
            "prompt_tokens": len(prompt),
            "prompt_token_ids": prompt,
            "chat_request": self._dialogue.chat_request(),
        }

    def _adopt(self, dialogue: Dialogue) -> Self:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._dialogue = dialogue
        return twin

    def fork(self) -> Self:
        """A second conversation on the same clients that shares everything up to here."""
        return self._adopt(self._dialogue.fork())


def _only_message(derendered: DerenderResponse) -> Message:
    if not derendered.choices or derendered.choices[0].message is None:
        raise BadReplyError("the answer of derender has no message")
    return derendered.choices[0].message


class Conversation(_Base):
    """A dialogue on a `Client`.

    `render_client` is the server that has the tokenizer, where that is another one (its render and derender routes
    are used; give `parse="derender"` when the token server cannot derender). `sampling_params` go over what render
    resolves, key by key; scores of the sampled tokens are asked for unless they say `logprobs: None`. `chat_fields`
    are further fields of the chat request: `chat_template_kwargs`, `tool_choice`, `max_tokens`, ...
    """

    def __init__(
        self,
        client: Client,
        messages: Sequence[Mapping[str, Any]] = (),
        *,
        model: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        sampling_params: Mapping[str, Any] | None = None,
        render_client: Client | None = None,
        parse: Parse = "generate",
        **chat_fields: Any,
    ) -> None:
        super().__init__(messages, model, tools, sampling_params, parse, chat_fields)
        self._client = client
        self._render_client = render_client or client

    def render(self) -> Rendered:
        """The next prompt. It begins with `token_ids`, else `PrefixMismatchError` (the server's, or ours)."""
        request = self._dialogue.render_request()
        rendered = self._render_client.render_chat(request.pop("messages"), **request)
        self._dialogue.check_prompt(rendered)
        return rendered

    def generate(self, sampling_params: Mapping[str, Any] | None = None) -> Turn:
        """The model's next message, appended to the dialogue. Nothing changes if it raises."""
        rendered = self.render()
        sampling = self._dialogue.sampling(sampling_params)
        response = self._client.generate(rendered, sampling, **self._dialogue.generate_fields(self._parse))
        message = self._message(rendered.token_ids, response)
        return self._accept(rendered, response, message, sampling)

    def _message(self, prompt: list[int], response: GenerateResponse) -> Message:
        if self._parse == "generate":
            return message_of(response)
        return _only_message(self._render_client.derender_chat(self._derender_request(prompt, response)))

    def run_tools(self, tools: Tools, *, on_error: OnError = "raise") -> list[ToolResult]:
        """Answer the pending tool calls and append the results.

        A call the model got wrong (no such tool, arguments that do not fit) is answered with what is wrong. An
        exception of a tool reaches the caller, before any result is appended, unless `on_error="tell"`.
        """
        return self._add_results([run_tool(call, tools, on_error) for call in self.pending_tool_calls()])

    def render_without_prefix(self) -> list[int]:
        """The ids that encoding the whole dialogue anew would give, to compare `token_ids` with."""
        request = self._dialogue.chat_request()
        return self._render_client.render_chat(request.pop("messages"), **request).token_ids


class AsyncConversation(_Base):
    """`Conversation` on an `AsyncClient`; tools may be coroutine functions, and run at the same time."""

    def __init__(
        self,
        client: AsyncClient,
        messages: Sequence[Mapping[str, Any]] = (),
        *,
        model: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        sampling_params: Mapping[str, Any] | None = None,
        render_client: AsyncClient | None = None,
        parse: Parse = "generate",
        **chat_fields: Any,
    ) -> None:
        super().__init__(messages, model, tools, sampling_params, parse, chat_fields)
        self._client = client
        self._render_client = render_client or client

    async def render(self) -> Rendered:
        request = self._dialogue.render_request()
        rendered = await self._render_client.render_chat(request.pop("messages"), **request)
        self._dialogue.check_prompt(rendered)
        return rendered

    async def generate(self, sampling_params: Mapping[str, Any] | None = None) -> Turn:
        rendered = await self.render()
        sampling = self._dialogue.sampling(sampling_params)
        response = await self._client.generate(rendered, sampling, **self._dialogue.generate_fields(self._parse))
        message = await self._message(rendered.token_ids, response)
        return self._accept(rendered, response, message, sampling)

    async def _message(self, prompt: list[int], response: GenerateResponse) -> Message:
        if self._parse == "generate":
            return message_of(response)
        return _only_message(await self._render_client.derender_chat(self._derender_request(prompt, response)))

    async def run_tools(self, tools: Tools, *, on_error: OnError = "raise") -> list[ToolResult]:
        running = [run_tool_async(call, tools, on_error) for call in self.pending_tool_calls()]
        ended = await asyncio.gather(*running, return_exceptions=True)  # all have ended before an error gets out
        for result in ended:
            if isinstance(result, BaseException):
                raise result
        return self._add_results([result for result in ended if isinstance(result, ToolResult)])

    async def render_without_prefix(self) -> list[int]:
        request = self._dialogue.chat_request()
        return (await self._render_client.render_chat(request.pop("messages"), **request)).token_ids
