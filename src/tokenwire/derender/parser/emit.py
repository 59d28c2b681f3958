"""Where steps put what they find: content, reasoning and calls, by the rules that hold for every format.

The border it guards: white space beside calls, text after calls, muted calls, ids and empty arguments are decided
here and nowhere else, so a syntax only says "text", "a call begins", "argument text", "the call ends".
"""

from __future__ import annotations

import secrets
import string

from tokenwire.derender.parser.compiled import Compiled
from tokenwire.derender.parser.message import MessageDelta, ToolCallDelta
from tokenwire.derender.parser.options import ParserOptions, ToolTable
from tokenwire.derender.parser.state import Mode, ParserState

_LETTERS = string.ascii_letters + string.digits


class Emitter:
    """Fills `out`, the delta being made."""

    __slots__ = ("_c", "_keeps_reasoning", "_options", "_s", "forced_name", "out", "tools")

    def __init__(self, compiled: Compiled, options: ParserOptions, state: ParserState) -> None:
        self._c = compiled
        self._options = options
        self._s = state
        self.tools = ToolTable(options.tools)
        self.forced_name = options.choice()[1]
        """The function of a named tool choice."""
        self._keeps_reasoning = (
            compiled.reasoning is not None
            and compiled.reasoning.may_force_content
            and options.chat_template_kwargs.get("force_nonempty_content") is True
        )
        self.out = MessageDelta()

    # ---- text -------------------------------------------------------------------------------------------------

    @property
    def drops_content(self) -> bool:
        """Content is dropped now: calls are forced, or one was made and this format has nothing to say after it."""
        return self._c.no_content or (self._c.drops_after_call and (self._s.calls > 0 or self._s.muted))

    def content(self, text: str) -> None:
        s = self._s
        if self.drops_content or not text:
            return
        if not s.started:
            stripped = text.lstrip()
            if not stripped:
                s.content_space += text
                return
            text = stripped if s.calls and self._c.trims_content else s.content_space + text
            s.content_space = ""
            s.started = True
        elif s.content_space:
            text, s.content_space = s.content_space + text, ""
        if self._c.trims_content:
            kept = text.rstrip()
            text, s.content_space = kept, text[len(kept) :]
        if text:
            self._release_reasoning()
            self.out.content = text if self.out.content is None else self.out.content + text

    def reasoning(self, text: str) -> None:
        s = self._s
        if not text:
            return
        if self._c.trims_reasoning:
            text = s.reasoning_space + text
            kept = text.rstrip()
            text, s.reasoning_space = kept, text[len(kept) :]
        if text and self._keeps_reasoning:
            s.kept_reasoning += text
        elif text:
            s.reasoned = True
            if self._options.include_reasoning and self._c.shows_reasoning:
                self.out.reasoning = text if self.out.reasoning is None else self.out.reasoning + text

    def _release_reasoning(self) -> None:
        """Content or a call has come, so the reasoning that was kept is reasoning."""
        text, self._s.kept_reasoning = self._s.kept_reasoning, ""
        if text and self._options.include_reasoning:
            self.out.reasoning = text

    def end(self) -> None:
        """White space still held is content unless it stands beside calls."""
        s = self._s
        if s.kept_reasoning:
            self.out.content, s.kept_reasoning, s.content_space = s.kept_reasoning, "", ""
        if s.content_space and not s.calls and not self.drops_content:
            self.out.content = (self.out.content or "") + s.content_space
        s.content_space = s.reasoning_space = ""

    # ---- calls ------------------------------------------------------------------------------------------------

    def open(self, raw: str, mode: Mode) -> None:
        """A marker was read that may begin calls; `raw` is its text."""
        s = self._s
        s.mode = mode
        s.raw = raw
        s.committed = s.announced = s.listed = s.alternate = False
        self.reset_call()

    def keep(self, text: str) -> None:
        """Remembers text of a call that may still turn out to be none."""
        if not self._s.announced and not self._s.committed:
            self._s.raw += text

    def reject(self, *, at_end: bool = False) -> None:
        """What was read is no call: it is text again, if the format keeps such text."""
        s = self._s
        raw, s.raw = s.raw, ""
        s.mode = Mode.SKIP if self._c.no_content else Mode.CONTENT
        was_committed, s.committed = s.committed, False
        self.reset_call()
        keeps = self._c.unfinished if at_end else self._c.malformed
        if was_committed or keeps == "drop":
            return
        if keeps == "body":
            marker = next((m for m in self._c.openers_by_length if raw.startswith(m)), "")
            raw = raw[len(marker) :].lstrip()
        self.content(raw)

    def announce(self, name: str, id: str | None = None) -> None:
        """A call begins; nothing takes it back."""
        s, options = self._s, self._options
        s.raw = ""
        s.announced = s.committed = True
        s.sent = False
        s.name = name
        s.muted = (
            self._c.hides_calls
            or (options.parallel_tool_calls is False and s.calls > 0)
            or (self._c.known_names_only and len(self.tools) > 0 and name not in self.tools)
        )
        if not s.muted:
            self._release_reasoning()
            self.out.tool_calls.append(ToolCallDelta(s.calls, id or self._new_id(name), name))
            s.calls += 1

    def announce_nothing(self) -> None:
        """A call without a usable name begins; it is read and not shown."""
        s = self._s
        s.raw = ""
        s.announced = s.committed = s.muted = True

    def arguments(self, text: str) -> None:
        s = self._s
        if s.muted or not text:
            return
        s.sent = True
        index = s.calls - 1
        calls = self.out.tool_calls
        if calls and calls[-1].index == index:
            calls[-1].arguments += text
        else:
            calls.append(ToolCallDelta(index, arguments=text))

    def end_call(self) -> None:
        """The announced call is complete, or will get no further."""
        if self._s.announced and not self._s.sent:
            self.arguments("{}")
        self.reset_call()

    def reset_call(self) -> None:
        """Forgets the call being read."""
        s = self._s
        s.announced = s.sent = s.in_string = s.escaped = s.text_value = False
        s.name = s.key = s.hold = s.stack = ""
        s.phase = s.depth = 0
        s.leading = True

    def _new_id(self, name: str) -> str:
        match self._options.call_ids or self._c.call_ids:
            case "functions":
                return f"functions.{name}:{self._options.history_tool_call_cnt + self._s.calls}"
            case "nine":
                return "".join(secrets.choice(_LETTERS) for _ in range(9))
            case _:
                return f"chatcmpl-tool-{secrets.token_hex(16)}"
