"""What a call syntax is to the machine.

The border it guards: a syntax object holds data only; all that changes is in the `ParserState` it is handed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tokenwire.derender.parser.emit import Emitter
    from tokenwire.derender.parser.state import ParserState

WAIT = -1
"""A step's answer when it can say nothing without more text."""


class Machine(Protocol):
    """What a syntax sees of the machine."""

    @property
    def s(self) -> ParserState: ...
    @property
    def emit(self) -> Emitter: ...
    @property
    def final(self) -> bool: ...


class CallSyntax(Protocol):
    """Reads calls from the marker that opens them to the text that follows them."""

    @property
    def openers(self) -> tuple[str, ...]:
        """Markers in the content that may begin calls."""
        ...

    def accepts(self, m: Machine, marker: str) -> bool:
        """Whether the marker means calls where it stands."""
        ...

    def open(self, m: Machine, marker: str, pos: int) -> int:
        """The marker was read up to `pos`. Sets the mode; gives where to go on."""
        ...

    def step(self, m: Machine, text: str, pos: int) -> int:
        """Reads on from `pos`; gives where to go on, or `WAIT`. Going on at `pos` means the mode has changed."""
        ...

    def finish(self, m: Machine, rest: str) -> None:
        """The output ends here; `rest` was not read."""
        ...


LONGEST_NAME = 1024
"""Characters of a call's header; a longer one is none, so that text after a lone marker is not held for ever."""


def read_name(m: Machine, text: str, pos: int, end: int) -> int | None:
    """Adds `text[pos:end]` to the header; where the call is rejected for its length, or null if it is not."""
    s = m.s
    upto = min(end, pos + LONGEST_NAME - len(s.name))
    s.name += text[pos:upto]
    m.emit.keep(text[pos:upto])
    if upto == end:
        return None
    m.emit.reject()
    return upto


SPACE = " \t\r\n"


def skip_space(text: str, pos: int) -> int:
    """The first position from `pos` on that is no JSON white space."""
    size = len(text)
    while pos < size and text[pos] in SPACE:
        pos += 1
    return pos
