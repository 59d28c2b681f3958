"""Token-exact conversations: a prompt that begins with given ids and goes on as the template would.

A dialogue's ids (prompts and sampled answers) cannot be had again by encoding its text: an answer may be cut into
other tokens, templates drop old reasoning, and calls are written down with other spaces. So the given ids are kept
as they are, and only what the template writes *after* the messages they cover is added. The question is where in the
template's output that begins, when nothing before it need agree with the ids.

The answer is found by rendering twice with different marks in the last covered message. From the mark on, both
renderings are the same text: the end of that message's turn, then everything later.

    A = ... <|im_start|>assistant\\n<think>..</think>\\n\\nMARK0<|im_end|>\\n<|im_start|>user\\nNext<|im_end|>\\n...
    B = ... <|im_start|>assistant\\n<think>..</think>\\n\\nMARK1<|im_end|>\\n<|im_start|>user\\nNext<|im_end|>\\n...
                                                        ^ common suffix of A and B

The same on the covered messages alone gives the *closing* (`<|im_end|>\\n`); the rest of the suffix is what later
messages add. Of the closing, only the part that the ids do not have yet is added: a sampled `<|im_end|>` stays, the
newline after it is added; an answer that was cut off gets the whole closing; another stop token than the template's
(`<|eom_id|>`, `<|return|>`) stands in for it.

Checked, and refused with `PrefixMismatchError` if not so: the ids begin with the template's rendering of the messages
before the first answer (so they belong to this conversation and these tools); the suffix does not depend on the
last covered message; the added text can be encoded beside the ids without changing them.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tokenwire.errors import InvalidRequestError, PrefixMismatchError
from tokenwire.render.chat import ChatEncoder, ChatInput, Prompt
from tokenwire.render.messages import Message
from tokenwire.render.tokenizer import Tokenizer

MARKS = ("qx0", "qx1")
"""Different in their last character, and no template rewrites them."""
CONTEXT_LEN = 8
"""How many of the given ids the added text is encoded beside."""
SUFFIX_TEXT_LEN = 64
"""How many of the given ids are decoded to see how they end."""

Run = TypeVar("Run", str, list[int])


@dataclass(slots=True, frozen=True)
class Prefix:
    """Ids of the conversation so far, and how many of its messages they cover."""

    token_ids: list[int]
    num_messages: int


def continue_prefix(
    encoder: ChatEncoder, tokenizer: Tokenizer, chat: ChatInput, prefix: Prefix, stop_ids: Collection[int] = ()
) -> list[int]:
    """The prompt of `chat`: `prefix.token_ids`, then what the format adds for the messages after it.

    `stop_ids` are ids that end an answer. Raises `PrefixMismatchError`. Renders about seven times.
    """
    return _Continuation(encoder, tokenizer, chat, prefix, stop_ids).prompt()


class _Continuation:
    def __init__(
        self,
        encoder: ChatEncoder,
        tokenizer: Tokenizer,
        chat: ChatInput,
        prefix: Prefix,
        stop_ids: Collection[int],
    ) -> None:
        self._encoder = encoder
        self._tokenizer = tokenizer
        self._chat = chat
        self._ids = prefix.token_ids
        self._num = prefix.num_messages
        self._stop_ids = {*stop_ids, *([tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else [])}

    def prompt(self) -> list[int]:
        self._check_head()
        whole = self._render(self._chat.messages)
        if isinstance(whole, str):
            added = self._added(self._text, whole)
            return [*self._ids, *self._encode_beside(added)]
        return [*self._ids, *self._added(self._id_list, whole)]

    # --- rendering ---------------------------------------------------------------------------------------------------

    def _render(self, messages: Sequence[Message], *, opens: bool | None = None) -> Prompt:
        """`opens`: with a generation prompt; None: as the request says."""
        chat = dataclasses.replace(self._chat, messages=messages)
        if opens is not None:
            chat = dataclasses.replace(chat, add_generation_prompt=opens, ends_closed=not opens)
        return self._encoder.encode(chat).prompt

    def _text(self, messages: Sequence[Message], opens: bool | None = None) -> str:
        prompt = self._render(messages, opens=opens)
        assert isinstance(prompt, str)
        return prompt

    def _id_list(self, messages: Sequence[Message], opens: bool | None = None) -> list[int]:
        prompt = self._render(messages, opens=opens)
        assert isinstance(prompt, list)
        return prompt

    # --- checks ------------------------------------------------------------------------------------------------------

    def _check_head(self) -> None:
        """The messages before the first answer were rendered, not sampled: their ids must be there as they are."""
        covered = self._chat.messages[: self._num]
        first = next((i for i, message in enumerate(covered) if message["role"] == "assistant"), None)
        if first == 0:
            return
        head_messages = covered if first is None else covered[:first]
        head = self._ids_of(self._render(head_messages, opens=first is not None))
        for position, (given, rendered) in enumerate(zip(self._ids, head, strict=False)):
            if given != rendered:
                raise PrefixMismatchError(
                    position, "the template renders other ids for the messages before the first answer"
                )
        if len(self._ids) < len(head):
            raise PrefixMismatchError(len(self._ids), "it ends within the messages it is said to cover")

    def _ids_of(self, prompt: Prompt) -> list[int]:
        return prompt if isinstance(prompt, list) else self._tokenizer.encode(prompt, add_special_tokens=False)

    # --- what to add -------------------------------------------------------------------------------------------------

    def _added(self, render: Callable[..., Run], whole: Run) -> Run:
        suffix = self._marked_suffix(render, self._chat.messages)
        if suffix is None:
            raise PrefixMismatchError(
                len(self._ids), "the template writes nothing that depends on the last covered message"
            )
        closing = self._closing(render)
        if closing is None:  # a format that cannot end in an answer, so its end cannot be seen alone
            return self._after_turn_end(suffix)
        if suffix[: len(closing)] != closing:
            raise PrefixMismatchError(len(self._ids), "the template ends that message otherwise once others follow it")
        rest = suffix[len(closing) :]
        if whole[len(whole) - len(rest) :] != rest:
            raise PrefixMismatchError(
                len(self._ids), "what the template writes later depends on the last covered message"
            )
        if self._covered_end["role"] != "assistant":
            return self._after_rendered(render, closing, rest)
        return self._after_turn_end(self._turn_end(render, closing)) + rest

    @property
    def _covered_end(self) -> Message:
        return self._chat.messages[self._num - 1]

    def _marked_suffix(
        self, render: Callable[..., Run], messages: Sequence[Message], *, plain: bool = False, opens: bool | None = None
    ) -> Run | None:
        """What is rendered after a mark in the last covered message; None if the mark is not rendered at all."""
        at: int = self._num - 1
        runs: list[Run] = []
        for mark in MARKS:
            marked = _marked(messages[at], mark, plain=plain)
            runs.append(render([*messages[:at], marked, *messages[at + 1 :]], opens))
        first, second = runs
        return None if first == second else _common_suffix(first, second)

    def _closing(self, render: Callable[..., Run]) -> Run | None:
        try:
            return self._marked_suffix(render, self._chat.messages[: self._num], opens=False)
        except InvalidRequestError:
            return None

    def _turn_end(self, render: Callable[..., Run], closing: Run) -> Run:
        """The part of the closing that ends the turn, without the brackets that end a call's arguments."""
        if not self._covered_end.get("tool_calls"):
            return closing
        try:
            plain = self._marked_suffix(render, self._chat.messages[: self._num], plain=True, opens=False)
        except InvalidRequestError:
            plain = None
        shared = _common_suffix(plain, closing) if plain is not None else closing
        return shared or closing

    def _after_turn_end(self, closing: Run) -> Run:
        """What is left of `closing`, given how the ids end."""
        last = self._ids[-1]
        end = self._as_run(last, closing)
        at = _find(closing, end)
        is_special = last in self._tokenizer.special_ids or last in self._stop_ids
        if is_special and at >= 0:
            return closing[at + len(end) :]
        first = self._first_special(closing)
        if last in self._stop_ids:
            return closing if first is None else closing[first[1] :]
        if first is not None:
            return closing[first[0] :]
        return closing[self._overlap(closing) :]

    def _after_rendered(self, render: Callable[..., Run], closing: Run, rest: Run) -> Run:
        """The ids end in a message that was rendered, perhaps with the generation prompt after it."""
        tail = self._tail(closing)
        opened = render(self._chat.messages[: self._num], True)
        closed = render(self._chat.messages[: self._num], False)
        opening = opened[len(closed) :]
        if opening and _ends_with(tail, closing + opening):
            if rest != opening:
                raise PrefixMismatchError(len(self._ids), "it opens an answer that the messages after it do not give")
            return rest[:0]
        if not _ends_with(tail, closing):
            raise PrefixMismatchError(len(self._ids), "it does not end where the last covered message ends")
        return rest

    # --- ids and text ------------------------------------------------------------------------------------------------

    def _as_run(self, token_id: int, like: Run) -> Run:
        piece = self._tokenizer.id_to_piece(token_id) or "\0"
        return piece if isinstance(like, str) else [token_id]

    def _tail(self, like: Run) -> Run:
        ids = self._ids[-SUFFIX_TEXT_LEN:]
        return self._tokenizer.decode(ids) if isinstance(like, str) else ids

    def _first_special(self, run: Run) -> tuple[int, int] | None:
        """Half-open range of the first special token in `run`."""
        if isinstance(run, str):
            pieces = [self._tokenizer.id_to_piece(i) or "" for i in self._tokenizer.special_ids]
            found = [(run.find(piece), len(piece)) for piece in pieces if piece and piece in run]
            if not found:
                return None
            # The longest of those that begin first.
            start, negative_len = min((start, -length) for start, length in found)
            return start, start - negative_len
        return next(((i, i + 1) for i, token_id in enumerate(run) if token_id in self._tokenizer.special_ids), None)

    def _overlap(self, closing: Run) -> int:
        """How much of the closing's beginning the ids already end with."""
        tail = self._tail(closing)
        return next((n for n in range(len(closing), 0, -1) if _ends_with(tail, closing[:n])), 0)

    def _encode_beside(self, added: str) -> list[int]:
        """Ids of `added` as it is encoded after the given ids, so that no space is put before it."""
        if not added:
            return []
        for length in range(min(CONTEXT_LEN, len(self._ids)), 0, -1):
            context = self._ids[-length:]
            encoded = self._tokenizer.encode(self._tokenizer.decode(context) + added, add_special_tokens=False)
            if encoded[:length] == context:
                return encoded[length:]
        alone = self._tokenizer.encode(added, add_special_tokens=False)
        before = self._tokenizer.decode(self._ids[-1:])
        if self._tokenizer.decode([self._ids[-1], *alone]) == before + added:
            return alone
        raise PrefixMismatchError(len(self._ids), "what follows cannot be encoded apart from the ids before it")


def _marked(message: Message, mark: str, *, plain: bool) -> Message:
    """The message with the mark as the last thing that it says: in the last call's arguments, else in its content."""
    calls = message.get("tool_calls")
    if calls and not plain:
        marked_calls: list[Any] = copy.deepcopy(list(calls))
        marked_calls[-1]["function"]["arguments"] = f'{{"a": "{mark}"}}'
        return {**message, "tool_calls": marked_calls}
    out = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**out, "content": mark}


def _common_suffix(a: Run, b: Run) -> Run:
    length = 0
    while length < min(len(a), len(b)) and a[-1 - length] == b[-1 - length]:
        length += 1
    return a[len(a) - length :]


def _ends_with(run: Run, end: Run) -> bool:
    return len(run) >= len(end) and run[len(run) - len(end) :] == end


def _find(run: Run, part: Run) -> int:
    if isinstance(run, str) and isinstance(part, str):
        return run.find(part)
    return next((i for i in range(len(run) - len(part) + 1) if run[i : i + len(part)] == part), -1)
