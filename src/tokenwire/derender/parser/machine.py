"""The one machine: output text in, message deltas out, whatever the model's format.

The border it guards: a step reads the text that cannot have been read before and the small `ParserState`, nothing
else, and decides only what no further text could change. That is why any cut of the output gives the same message,
why a delta costs the same after ten tokens as after ten thousand, and why the state can travel with the client.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tokenwire.derender.parser.compiled import Compiled, compile_format
from tokenwire.derender.parser.emit import Emitter
from tokenwire.derender.parser.format import Format
from tokenwire.derender.parser.message import MessageDelta
from tokenwire.derender.parser.options import ParserOptions
from tokenwire.derender.parser.reasoning import thinking_enabled
from tokenwire.derender.parser.state import Mode, ParserState, dump_state, load_state
from tokenwire.derender.parser.syntaxes.base import WAIT
from tokenwire.errors import InvalidStateError

_MOST_IDLE_STEPS = 16
"""Steps in a row that read nothing and only change the mode; our own states need three."""


class MessageParser:
    """One choice's parser. `feed` text as it comes, `finish` once; `state` may be carried away after any of them.

    `feed` never raises for what a model wrote. Special tokens must be in the text (`skip_special_tokens=False`).
    """

    __slots__ = (
        "_c",
        "_emit",
        "_final",
        "_include_reasoning",
        "_plain_content",
        "_plain_reasoning",
        "_restored",
        "_s",
        "steps",
    )

    def __init__(self, format: Format, options: ParserOptions, state: Any = None) -> None:
        kind, _ = options.choice()
        reasoning = format.reasoning
        thinking = reasoning is not None and thinking_enabled(reasoning, options.chat_template_kwargs)
        self._c: Compiled = compile_format(format, kind, thinking, tuple(options.eos_texts), options.forced)
        self._final = False
        self.steps = 0
        """Steps of the machine so far, a measure of its work."""
        self._restored = state is not None
        self._s = ParserState() if state is None else load_state(state)
        self._emit = Emitter(self._c, options, self._s)
        self._include_reasoning = options.include_reasoning
        self._plain_content = self._c.plain_content
        self._plain_reasoning = self._c.plain_reasoning
        if state is None:
            self._set_out(options)

    def _set_out(self, options: ParserOptions) -> None:
        """Where the output begins, by the format's rule, the settings and the prompt."""
        reasoning, s = self._c.reasoning, self._s
        if reasoning is None or (options.prompt_reasoning == "closed" and reasoning.prompt_closes):
            self.enter_content()
        elif reasoning.starts == "open" or (options.prompt_reasoning == "open" and reasoning.prompt_opens):
            self.enter_reasoning()
        elif reasoning.starts == "marker":
            self.enter_content()
        if reasoning is not None and reasoning.content_prefix and options.prompt_reasoning != "closed":
            s.content_space = reasoning.content_prefix

    # ---- what callers use -------------------------------------------------------------------------------------

    @property
    def state(self) -> list[Any]:
        """The state between two deltas, as plain values; see `state.dump_state`."""
        return dump_state(self._s)

    @property
    def num_calls(self) -> int:
        """Calls announced so far."""
        return self._s.calls

    @property
    def saw_tool_calls(self) -> bool:
        return self._s.calls > 0

    def feed(self, text: str) -> MessageDelta:
        """The next piece of output text; gives what can be said now."""
        s = self._s
        if not text or s.ended:
            return MessageDelta()
        if not (s.buffer or s.tail):
            if s.mode is Mode.CONTENT and s.started and not s.content_space:
                if self._plain_content.search(text) is None and not self._emit.drops_content:
                    return MessageDelta(text)
            elif s.mode is Mode.REASONING and s.reasoned and not s.reasoning_space:  # noqa: SIM102
                if self._plain_reasoning.search(text) is None:
                    return MessageDelta(None, text) if self._include_reasoning else MessageDelta()
        self._emit.out = MessageDelta()
        with self._foreign_state():
            self._run(self._held_back(text))
        return self._emit.out

    def finish(self, finish_reason: str | None = None) -> MessageDelta:
        """The end of the output: whatever was held back, now that nothing follows.

        A turn-end text at the very end is dropped unless the output was cut off (`finish_reason` is `length`).
        """
        s = self._s
        self._emit.out = MessageDelta()
        if s.ended:
            return self._emit.out
        tail, s.tail = s.tail, ""
        if finish_reason != "length":
            tail = self._c.turn_ends.without_end(tail)
        self._final = True
        with self._foreign_state():
            self._run(tail)
            if s.mode is Mode.START:
                self.enter_content()
                self._run("")
            if s.mode in (Mode.SECTION, Mode.HEADER, Mode.ARGUMENTS) and self._c.syntax is not None:
                rest, s.buffer = s.buffer, ""
                self._c.syntax.finish(self, rest)
            self._emit.end()
        s.buffer = ""
        s.ended = True
        return self._emit.out

    @contextmanager
    def _foreign_state(self) -> Iterator[None]:
        """A state that was brought back may be well-formed and still not ours: then it is to blame, not the output."""
        try:
            yield
        except (IndexError, ValueError, TypeError, OverflowError) as exc:
            if not self._restored:
                raise
            raise InvalidStateError("parser: it does not fit the output's format") from exc

    # ---- the loop ---------------------------------------------------------------------------------------------

    def _held_back(self, text: str) -> str:
        """`text` without what may turn out to be the end-of-turn token."""
        s = self._s
        if s.tail:
            text, s.tail = s.tail + text, ""
        cut = self._c.turn_ends.held_from(text)
        if cut < len(text):
            text, s.tail = text[:cut], text[cut:]
        return text

    def _run(self, text: str) -> None:
        s = self._s
        buffer, s.buffer = s.buffer + text, ""
        pos, size, idle = 0, len(buffer), 0
        while pos < size:
            self.steps += 1
            reached = self._step(buffer, pos)
            if reached == WAIT:
                break
            idle = idle + 1 if reached <= pos else 0
            if idle > _MOST_IDLE_STEPS:  # only a state that is not of our making
                raise InvalidStateError("parser: it does not fit the output's format")
            pos = reached
        s.buffer = buffer[pos:]

    def _step(self, text: str, pos: int) -> int:
        match self._s.mode:
            case Mode.CONTENT:
                return self._content(text, pos)
            case Mode.REASONING:
                return self._reasoning(text, pos)
            case Mode.START:
                return self._start(text, pos)
            case Mode.SKIP:
                return len(text)
        syntax = self._c.syntax
        return len(text) if syntax is None else syntax.step(self, text, pos)

    def _start(self, text: str, pos: int) -> int:
        marker = self._c.reasoning_starts.at(text, pos, final=self._final)
        if marker == "":
            return WAIT
        if marker is None:
            self.enter_content()
            return pos
        self.enter_reasoning()
        return pos + len(marker)

    def _reasoning(self, text: str, pos: int) -> int:
        s, c = self._s, self._c
        if s.leading and c.reasoning is not None and c.reasoning.prefix:
            prefix = c.reasoning.prefix
            if not self._final and prefix.startswith(text[pos : pos + len(prefix)]) and len(text) - pos < len(prefix):
                return WAIT
            s.leading = False
            if text.startswith(prefix, pos):
                return pos + len(prefix)
        found = c.in_reasoning.find(text, pos, final=self._final)
        if found.start > pos:
            self._emit.reasoning(text[pos : found.start])
        if found.marker is None:
            return found.start if found.start > pos else WAIT
        if found.marker in c.reasoning_starts.markers:
            return found.start + len(found.marker)
        self.enter_content()
        return found.start if found.marker in c.implicit_ends else found.start + len(found.marker)

    def _content(self, text: str, pos: int) -> int:
        c = self._c
        if c.strips_content_newlines and self._s.leading:
            start, pos = pos, pos + len(text) - len(text[pos:].lstrip("\n")) - pos
            if pos == len(text):
                return pos
            self._s.leading = False
            if pos > start:
                return pos
        found = c.in_content.find(text, pos, final=self._final)
        if found.start > pos:
            self._emit.content(text[pos : found.start])
        marker = found.marker
        if marker is None:
            return found.start if found.start > pos else WAIT
        after = found.start + len(marker)
        if c.syntax is not None and marker in c.openers:
            if c.syntax.accepts(self, marker):
                return c.syntax.open(self, marker, after)
            self._emit.content(marker)
        elif marker in c.reopeners:
            self.enter_reasoning()
        return after

    # ---- what steps and syntaxes use --------------------------------------------------------------------------

    @property
    def s(self) -> ParserState:
        return self._s

    @property
    def emit(self) -> Emitter:
        return self._emit

    @property
    def final(self) -> bool:
        """No text follows any more."""
        return self._final

    def enter_content(self) -> None:
        self._s.mode = self._c.content_mode
        self._s.leading = True

    def enter_reasoning(self) -> None:
        self._s.mode = Mode.REASONING
        self._s.leading = not self._s.reasoned
