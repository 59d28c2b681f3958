"""The parser's whole memory between two deltas: a flat record of short strings and small numbers.

The border it guards: this record leaves the process inside the client's `stream_state` and comes back, so it is
versioned, it is plain JSON or MessagePack, and what comes back is checked before the machine touches it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any

import msgspec

from tokenwire.errors import InvalidStateError

STATE_VERSION = 1
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]


class Mode(IntEnum):
    """What the next character is part of."""

    START = 0
    """Nothing read yet but what may still become the marker that opens reasoning."""
    REASONING = 1
    CONTENT = 2
    SECTION = 3
    """Between the markers around calls, before, between or after them."""
    HEADER = 4
    """The part of a call before its arguments."""
    ARGUMENTS = 5
    SKIP = 6
    """Nothing more will be read."""


class ParserState(msgspec.Struct, array_like=True, kw_only=True):
    """One choice's parser. Positional: fields are only ever added at the end."""

    version: int = STATE_VERSION
    mode: Mode = Mode.START
    buffer: str = ""
    """Text that cannot be told yet, at most a marker or a value in progress."""
    tail: str = ""
    """Text that may be the end-of-turn token."""
    raw: str = ""
    """What was read of a call that is not announced yet; text again if it turns out to be none."""
    content_space: str = ""
    """White space of the content, held until it is known what follows."""
    reasoning_space: str = ""
    started: bool = False
    """Some content was sent that is not white space."""
    reasoned: bool = False
    """Some reasoning was sent."""
    calls: Count = 0
    """Calls announced so far."""
    muted: bool = False
    """The call being read is not to be shown."""
    sent: bool = False
    """The call being read has sent some argument text."""
    announced: bool = False
    """The call being read was announced (or would have been, were it not muted)."""
    committed: bool = False
    """A call of this section was announced, so the rest of the section is no text any more."""
    name: str = ""
    key: str = ""
    hold: str = ""
    """Argument text held back: a value whose type is not text, or white space after the arguments."""
    phase: Count = 0
    """Where in its grammar the argument syntax stands."""
    depth: Count = 0
    in_string: bool = False
    escaped: bool = False
    listed: bool = False
    """The calls stand in a list."""
    alternate: bool = False
    """The format's second syntax is being read."""
    text_value: bool = False
    """The value being read is sent as text while it is written."""
    stack: str = ""
    """Open brackets of a nested value."""
    leading: bool = False
    """The next character is the first of its value, or of the reasoning."""
    kept_reasoning: str = ""
    """Reasoning that is the content if no content follows; only with `force_nonempty_content`."""
    ended: bool = False
    """`finish` was called."""


_PLAIN = (str, bool, int)


def dump_state(state: ParserState) -> list[Any]:
    """The state as a list of strings, numbers and booleans, for JSON or MessagePack."""
    return list(msgspec.to_builtins(state))


def load_state(value: Any) -> ParserState:
    """The state of `dump_state`'s list; `InvalidStateError` if it is not one of this version."""
    try:
        state = msgspec.convert(value, ParserState)
    except (msgspec.ValidationError, TypeError, ValueError) as exc:
        raise InvalidStateError(f"parser: {exc}") from exc
    if state.version != STATE_VERSION:
        raise InvalidStateError(f"parser: version {state.version} is not {STATE_VERSION}")
    return state
