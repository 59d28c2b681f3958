"""Chat chunks as a response's stream events: numbered, one item after another, each closed before the next opens."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import msgspec
from msgspec import UNSET

from tokenwire.service.responses_items import ItemDraft, ItemDrafts, custom_input
from tokenwire.wire.chat_reply import ChatStreamChoice, ChatStreamChunk
from tokenwire.wire.generate import DeltaToolCall, TextLogprobEntry
from tokenwire.wire.responses_reply import (
    ItemStatus,
    OutputItem,
    OutputText,
    ReasoningText,
    ResponseEvent,
    ResponsesResponse,
)
from tokenwire.wire.usage import UsageInfo

MakeResponse = Callable[[list[OutputItem], str | None, UsageInfo | None], ResponsesResponse]
"""From items, finish reason (None: still running) and usage."""

EXTRAS = ("kv_transfer_params", "ec_transfer_params", "metrics")
"""Fields of a chunk that the last response has too."""


class ResponseStream:
    """Shapes one stream. The chat below it must end with its usage."""

    def __init__(self, drafts: ItemDrafts, make: MakeResponse, *, wants_logprobs: bool) -> None:
        self._drafts = drafts
        self._make = make
        self._wants_logprobs = wants_logprobs
        self._open: ItemDraft | None = None
        self._open_call = -1
        self._number = 0
        self._finish_reason: str | None = None
        self._extras: dict[str, Any] = {}
        """What the last chunks say of the request as a whole."""
        self._scores: list[TextLogprobEntry] = []
        """Of tokens whose text has not shown yet."""

    def events(self, chunk: ChatStreamChunk) -> Iterator[ResponseEvent]:
        """What this chunk adds."""
        if not self._number:
            begun = self._make([], None, None)
            yield self._event("response.created", response=begun)
            yield self._event("response.in_progress", response=begun)
        self._extras |= {name: value for name in EXTRAS if (value := getattr(chunk, name)) is not UNSET}
        for choice in chunk.choices:
            yield from self._choice(choice)
        if not chunk.choices and chunk.usage is not UNSET:
            yield from self._end(chunk.usage)

    def _event(self, type: str, **fields: Any) -> ResponseEvent:
        number, self._number = self._number, self._number + 1
        return ResponseEvent(type=type, sequence_number=number, **fields)

    def _choice(self, choice: ChatStreamChoice) -> Iterator[ResponseEvent]:
        delta = choice.delta
        if choice.logprobs is not None:
            self._scores += choice.logprobs.content
        if choice.finish_reason is not None:
            self._finish_reason = choice.finish_reason
        if delta.reasoning:
            draft = yield from self._opened("reasoning")
            draft.text.append(delta.reasoning)
            yield self._event("response.reasoning_text.delta", delta=delta.reasoning, **self._part())
        if delta.content:
            draft = yield from self._opened("message")
            draft.text.append(delta.content)
            scores = self._take_scores(draft)
            yield self._event("response.output_text.delta", delta=delta.content, logprobs=scores, **self._part())
        for call in delta.tool_calls or ():
            yield from self._call(call)

    def _call(self, call: DeltaToolCall) -> Iterator[ResponseEvent]:
        function = call.function
        if function is UNSET:
            return
        if function.name is not UNSET and call.index != self._open_call:
            yield from self._closed("completed")
            self._open_call = call.index
            self._open = self._drafts.begin("call", name=function.name, call_id=call.id or f"call_{call.index}")
            yield self._added(self._open)
        if function.arguments and self._open is not None:
            self._open.text.append(function.arguments)
            if not self._open.custom:
                delta = function.arguments
                yield self._event("response.function_call_arguments.delta", delta=delta, **self._where())

    def _opened(self, kind: str) -> Generator[ResponseEvent, None, ItemDraft]:
        """Returns the draft that is open then."""
        if self._open is None or self._open.kind != kind:
            yield from self._closed("completed")
            self._open = self._drafts.begin(kind)
            yield self._added(self._open)
            part = OutputText(text="", logprobs=[]) if kind == "message" else ReasoningText(text="")
            yield self._event("response.content_part.added", part=part, **self._part())
        return self._open

    def _added(self, draft: ItemDraft) -> ResponseEvent:
        index = len(self._drafts.drafts) - 1
        return self._event("response.output_item.added", output_index=index, item=draft.item("in_progress"))

    def _closed(self, status: ItemStatus) -> Iterator[ResponseEvent]:
        draft = self._open
        if draft is None:
            return
        text, where = draft.whole, self._where()
        if draft.kind == "reasoning":
            yield self._event("response.reasoning_text.done", text=text, **self._part())
            yield self._event("response.content_part.done", part=ReasoningText(text=text), **self._part())
        elif draft.kind == "message":
            scores = draft.logprobs or []
            yield self._event("response.output_text.done", text=text, logprobs=scores, **self._part())
            done = OutputText(text=text, logprobs=draft.logprobs)
            yield self._event("response.content_part.done", part=done, **self._part())
        elif draft.custom:
            shown = custom_input(text)
            yield self._event("response.custom_tool_call_input.delta", delta=shown, **where)
            yield self._event("response.custom_tool_call_input.done", input=shown, **where)
        else:
            yield self._event("response.function_call_arguments.done", name=draft.name, arguments=text, **where)
        item = draft.item(status)
        yield self._event("response.output_item.done", output_index=where["output_index"], item=item)
        self._open = None

    def _end(self, usage: UsageInfo) -> Iterator[ResponseEvent]:
        status = item_status(self._finish_reason)
        if self._open is not None and self._open.kind == "message":
            self._take_scores(self._open)
        yield from self._closed(status)
        whole = self._make(self._drafts.items(status), self._finish_reason or "stop", usage)
        whole = msgspec.structs.replace(whole, **self._extras)
        name = "completed" if whole.status == "completed" else "incomplete"
        yield self._event(f"response.{name}", response=whole)

    def _take_scores(self, draft: ItemDraft) -> list[TextLogprobEntry]:
        taken, self._scores = self._scores, []
        if self._wants_logprobs:
            draft.logprobs = [*(draft.logprobs or ()), *taken]
        return taken

    def _where(self) -> dict[str, Any]:
        assert self._open is not None
        return {"item_id": self._open.id, "output_index": len(self._drafts.drafts) - 1}

    def _part(self) -> dict[str, Any]:
        return {**self._where(), "content_index": 0}


def item_status(finish_reason: str | None) -> ItemStatus:
    """Of the item that was growing when the output ended."""
    return "incomplete" if finish_reason in ("length", "abort") else "completed"
