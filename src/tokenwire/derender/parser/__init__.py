"""One incremental machine that turns model output text into reasoning, content and tool calls, for every format."""

from __future__ import annotations

from tokenwire.derender.parser.detect import Detected, detect_format
from tokenwire.derender.parser.format import Format, ReasoningFormat, ToolFormat
from tokenwire.derender.parser.formats import (
    UnknownFormatError,
    find_format,
    known_reasoning_parsers,
    known_tool_parsers,
)
from tokenwire.derender.parser.machine import MessageParser
from tokenwire.derender.parser.message import (
    Message,
    MessageBuilder,
    MessageDelta,
    ToolCall,
    ToolCallDelta,
    assemble,
)
from tokenwire.derender.parser.options import ParserOptions, ReasoningState
from tokenwire.derender.parser.reasoning import reasoning_state_of_prompt

__all__ = [
    "Detected",
    "Format",
    "Message",
    "MessageBuilder",
    "MessageDelta",
    "MessageParser",
    "ParserOptions",
    "ReasoningFormat",
    "ReasoningState",
    "ToolCall",
    "ToolCallDelta",
    "ToolFormat",
    "UnknownFormatError",
    "assemble",
    "detect_format",
    "find_format",
    "known_reasoning_parsers",
    "known_tool_parsers",
    "reasoning_state_of_prompt",
]
