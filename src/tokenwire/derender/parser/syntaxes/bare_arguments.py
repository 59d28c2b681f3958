"""A forced function's arguments as the whole content.

The border it guards: nothing is added or left out; content of white space alone is no call.
"""

from __future__ import annotations

from tokenwire.derender.parser.syntaxes.base import Machine


class BareSyntax:
    """See `BareArguments`."""

    __slots__ = ()
    openers: tuple[str, ...] = ()

    def accepts(self, m: Machine, marker: str) -> bool:
        return False

    def open(self, m: Machine, marker: str, pos: int) -> int:
        return pos

    def step(self, m: Machine, text: str, pos: int) -> int:
        s = m.s
        piece = text[pos:]
        if not s.announced:
            s.hold += piece
            if not piece.strip():
                return len(text)
            piece = s.hold
            m.emit.announce(m.emit.forced_name)
            s.hold = ""
        m.emit.arguments(piece)
        return len(text)

    def finish(self, m: Machine, rest: str) -> None:
        if m.s.announced:
            m.emit.end_call()
