"""Output items of a response: how they are named, numbered and closed, whole and streamed alike."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec

from tokenwire.service.responses_to_chat import CUSTOM_INPUT
from tokenwire.wire.generate import TextLogprobEntry
from tokenwire.wire.responses_reply import (
    CustomCallItem,
    FunctionCallItem,
    ItemStatus,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
)

PREFIXES = {"reasoning": "rs", "message": "msg", "call": "fc"}


@dataclass(slots=True)
class ItemDraft:
    """One item while it grows: a reasoning, a message, or the call of a tool."""

    kind: str
    id: str
    text: list[str] = field(default_factory=list)
    """Pieces of the text, or of the arguments."""
    call_id: str = ""
    name: str = ""
    custom: bool = False
    logprobs: list[TextLogprobEntry] | None = None

    @property
    def whole(self) -> str:
        return "".join(self.text)

    def item(self, status: ItemStatus) -> OutputItem:
        """As it stands now."""
        text = self.whole
        if self.kind == "reasoning":
            return ReasoningItem(id=self.id, content=[ReasoningText(text=text)] if text else [], status=status)
        if self.kind == "message":
            parts = [] if status == "in_progress" else [OutputText(text=text, logprobs=self.logprobs)]
            return MessageItem(id=self.id, content=parts, status=status)
        if self.custom:
            shown = custom_input(text) if status != "in_progress" else ""
            return CustomCallItem(id=self.id, call_id=self.call_id, name=self.name, input=shown, status=status)
        return FunctionCallItem(id=self.id, call_id=self.call_id, name=self.name, arguments=text, status=status)


class ItemDrafts:
    """Begins the items of one response, in order; ids are stable for a request."""

    def __init__(self, response_id: str, custom_tools: Collection[str]) -> None:
        self._tail = response_id.removeprefix("resp_")
        self._custom = custom_tools
        self.drafts: list[ItemDraft] = []

    def begin(self, kind: str, *, name: str = "", call_id: str = "") -> ItemDraft:
        """`kind`: reasoning, message or call."""
        number = len(self.drafts)
        draft = ItemDraft(
            kind, f"{PREFIXES[kind]}_{self._tail}_{number}", call_id=call_id, name=name, custom=name in self._custom
        )
        self.drafts.append(draft)
        return draft

    def items(self, last: ItemStatus) -> list[OutputItem]:
        """All items, closed; the last one was still growing when the output ended, and has the status of that end."""
        return [draft.item(last if draft is self.drafts[-1] else "completed") for draft in self.drafts]


def custom_input(arguments: str) -> str:
    """The free text that a custom tool was called with; arguments of another shape are given as they are."""
    try:
        found = msgspec.json.decode(arguments, type=dict[str, str])
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return arguments
    return found[CUSTOM_INPUT] if list(found) == [CUSTOM_INPUT] else arguments
