"""Harmony: messages on channels, `<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final...`.

The border it guards: channel and recipient say what a message is, and nothing else does. A recipient
`functions.name` is a call; channel analysis is reasoning; final, and commentary without a recipient, is content.
"""

from __future__ import annotations

import re

from tokenwire.derender.parser.lexicon import Lexicon
from tokenwire.derender.parser.state import Mode
from tokenwire.derender.parser.syntaxes.base import LONGEST_NAME, WAIT, Machine, skip_space

# Phases in SECTION: first header, between messages, in a later header, text that never had a header.
FIRST, BETWEEN, LATER, PLAIN = range(4)
# Phases in ARGUMENTS, a message's body.
REASONING, CONTENT, CALL, IGNORED = range(4)
_CHANNEL, _START, _MESSAGE = "<|channel|>", "<|start|>", "<|message|>"
_LONGEST_STRAY = 256
"""Characters of text before any marker after which it is taken for plain content."""
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_WORD = re.compile(r"\s*([A-Za-z_]+)")


class HarmonySyntax:
    """The one Harmony."""

    __slots__ = ("_body_ends", "_header_ends", "_starts")
    openers: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._body_ends = Lexicon(("<|end|>", "<|call|>", "<|return|>"))
        self._header_ends = Lexicon((_MESSAGE, "<|end|>", "<|call|>", "<|return|>"))
        self._starts = Lexicon((_START,))

    def accepts(self, m: Machine, marker: str) -> bool:
        return False

    def open(self, m: Machine, marker: str, pos: int) -> int:
        return pos

    def step(self, m: Machine, text: str, pos: int) -> int:
        if m.s.mode is Mode.ARGUMENTS:
            return self._body(m, text, pos)
        match m.s.phase:
            case _ if m.s.phase == PLAIN:
                m.emit.content(text[pos:])
                return len(text)
            case _ if m.s.phase == BETWEEN:
                return self._find_start(m, text, pos)
        return self._header(m, text, pos)

    def _find_start(self, m: Machine, text: str, pos: int) -> int:
        found = self._starts.find(text, pos, final=m.final)
        if found.marker is None:
            return found.start if found.start > pos else WAIT
        m.s.phase, m.s.hold = LATER, _START
        return found.start + len(_START)

    def _header(self, m: Machine, text: str, pos: int) -> int:
        s = m.s
        found = self._header_ends.find(text, pos, final=m.final)
        room = LONGEST_NAME - len(s.hold)
        if found.start - pos > room:
            m.emit.content(s.hold + text[pos : pos + room])
            s.phase, s.hold = PLAIN, ""
            return pos + room
        s.hold += text[pos : found.start]
        if found.marker is None:
            self._plain_if_no_header(m)
            return found.start if found.start > pos else WAIT
        upto = found.start + len(found.marker)
        if s.phase == FIRST and not s.hold.startswith(_CHANNEL):
            s.mode, s.hold = Mode.SKIP, ""
        elif found.marker != _MESSAGE:
            s.phase, s.hold = BETWEEN, ""
        else:
            self._begin(m)
        return upto

    @staticmethod
    def _plain_if_no_header(m: Machine) -> None:
        s = m.s
        if s.phase == FIRST and len(s.hold) > _LONGEST_STRAY and not s.hold.startswith("<|"):
            m.emit.content(s.hold)
            s.phase, s.hold = PLAIN, ""

    @staticmethod
    def _begin(m: Machine) -> None:
        """A header is complete: its message begins."""
        s = m.s
        header, s.hold = s.hold, ""
        match = _RECIPIENT.search(header)
        recipient = match.group(1) if match else None
        word = _WORD.match(header.partition(_CHANNEL)[2])
        channel = word.group(1) if word else ""
        s.mode = Mode.ARGUMENTS
        s.leading = True
        name = recipient.removeprefix("functions.") if recipient and recipient.startswith("functions.") else ""
        if name:
            m.emit.reset_call()
            m.emit.announce(name)
            s.phase = CALL
        elif recipient and recipient.startswith("functions."):
            s.phase = IGNORED
        elif channel == "analysis":
            s.phase = REASONING
        else:
            s.phase = CONTENT if channel == "final" or (channel == "commentary" and not recipient) else IGNORED

    def _body(self, m: Machine, text: str, pos: int) -> int:
        s = m.s
        if s.phase == CALL and s.leading:
            after = skip_space(text, pos)
            if after == len(text):
                return after
            s.leading = False
            return after if after > pos else self._body(m, text, pos)
        found = self._body_ends.find(text, pos, final=m.final)
        self._add(m, text[pos : found.start])
        if found.marker is None:
            return found.start if found.start > pos else WAIT
        if s.phase == CALL:
            m.emit.end_call()
        s.mode, s.phase, s.hold = Mode.SECTION, BETWEEN, ""
        return found.start + len(found.marker)

    @staticmethod
    def _add(m: Machine, piece: str) -> None:
        s = m.s
        if s.phase == REASONING:
            m.emit.reasoning(piece)
        elif s.phase == CONTENT:
            m.emit.content(piece)
        elif s.phase == CALL:
            piece = s.hold + piece
            kept = piece.rstrip()
            s.hold = piece[len(kept) :]
            m.emit.arguments(kept)

    def finish(self, m: Machine, rest: str) -> None:
        s = m.s
        if s.mode is Mode.ARGUMENTS and s.phase == CALL:
            m.emit.end_call()
        elif s.mode is Mode.SECTION and s.phase in (FIRST, LATER):
            m.emit.content(s.hold + rest)
