"""A format made ready for one kind of request: lexicons, and the rules that follow from format and tool choice.

The border it guards: everything that can be worked out before the first token is worked out once and shared by all
parsers of the same format and settings; nothing here changes afterwards.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from tokenwire.derender.parser.format import (
    FORCED_LIST,
    BareArguments,
    CallIds,
    Format,
    HarmonyCalls,
    ReasoningFormat,
    ToolFormat,
    XmlCalls,
)
from tokenwire.derender.parser.lexicon import Lexicon
from tokenwire.derender.parser.options import ChoiceKind
from tokenwire.derender.parser.state import Mode
from tokenwire.derender.parser.syntaxes import make_syntax
from tokenwire.derender.parser.syntaxes.base import CallSyntax
from tokenwire.derender.parser.turn_end import TurnEnds

_PLAIN = ToolFormat(name="", syntax=BareArguments())


@dataclass(slots=True, frozen=True)
class Compiled:
    """See the fields' names in `format.py`; only what is not there is told here."""

    reasoning: ReasoningFormat | None
    """Null where thinking is off."""
    syntax: CallSyntax | None
    """Null where calls are not read."""
    content_mode: Mode
    """The mode in which content is read."""
    in_content: Lexicon
    in_reasoning: Lexicon
    reasoning_starts: Lexicon
    implicit_ends: frozenset[str]
    openers: frozenset[str]
    openers_by_length: tuple[str, ...]
    """Without the brackets that open calls with no marker: those are part of the calls."""
    reopeners: frozenset[str]
    turn_ends: TurnEnds
    plain_content: re.Pattern[str]
    """Matches text that is not merely content to be passed on."""
    plain_reasoning: re.Pattern[str]
    shows_reasoning: bool
    """False for a Harmony output when no reasoning was asked to be read: its analysis is then nobody's."""
    strips_content_newlines: bool
    trims_content: bool
    trims_reasoning: bool
    drops_after_call: bool
    no_content: bool
    """Calls are forced as JSON; whatever is no call is nothing."""
    hides_calls: bool
    known_names_only: bool
    unfinished: str
    malformed: str
    call_ids: CallIds


def _syntax_of(format: Format, kind: ChoiceKind, forced: str | None) -> tuple[CallSyntax | None, bool, bool]:
    """The syntax to read, whether it is one of the forced ones, and whether its calls are hidden."""
    tools = format.tools
    if tools is None:
        return None, False, False
    if isinstance(tools.syntax, HarmonyCalls):
        return make_syntax(tools.syntax), False, kind == "none"
    if kind == "none":
        return (make_syntax(tools.syntax), False, True) if format.is_engine else (None, False, False)
    if kind in ("required", "named"):
        if (forced or tools.forced) == "json":
            return make_syntax(FORCED_LIST if kind == "required" else BareArguments()), True, False
        return make_syntax(tools.forced_syntax or tools.syntax), False, False
    return make_syntax(tools.syntax), False, False


@lru_cache(maxsize=256)
def compile_format(
    format: Format, kind: ChoiceKind, thinking: bool, eos_texts: tuple[str, ...], forced_as: str | None = None
) -> Compiled:
    """`format` for a tool choice, with thinking on or off. Cached: parsers of one kind share one."""
    tools = format.tools or _PLAIN
    declared = format.reasoning
    reasoning = declared if thinking else None
    syntax, forced, hidden = _syntax_of(format, kind, forced_as)
    owns_all = syntax is not None and isinstance(tools.syntax, HarmonyCalls)
    if declared is not None and format.tools is None and declared.harmony:
        syntax, owns_all, hidden = make_syntax(HarmonyCalls()), True, True
    openers = frozenset(syntax.openers) if syntax is not None and not forced else frozenset()
    marks: set[str] = set(openers)
    reopeners: frozenset[str] = frozenset()
    if declared is not None and (reasoning is not None or declared.markers_when_off):
        if declared.reopens or declared.starts == "marker":
            reopeners = frozenset(declared.start) if reasoning is not None else frozenset()
        if declared.stray_end == "drop":
            marks.update(declared.end)
        marks.update(reopeners)
        marks.update(declared.dropped)
    starts = reasoning.start if reasoning is not None and not reasoning.keep_start else ()
    implicit = frozenset(reasoning.implicit_end) if reasoning is not None else frozenset()
    in_content = Lexicon(marks)
    in_reasoning = Lexicon({*starts, *(reasoning.end if reasoning else ()), *implicit})
    turn_ends = TurnEnds((*tools.turn_ends, *(declared.turn_ends if declared else ()), *eos_texts))
    trims_content = tools.space == "trim" and syntax is not None
    trims_reasoning = reasoning is not None and reasoning.trim
    return Compiled(
        reasoning=None if owns_all else reasoning,
        syntax=syntax,
        content_mode=Mode.SECTION if forced or owns_all else Mode.CONTENT,
        in_content=in_content,
        in_reasoning=in_reasoning,
        reasoning_starts=Lexicon(starts),
        implicit_ends=implicit,
        openers=openers,
        openers_by_length=tuple(sorted(openers - set("[{"), key=len, reverse=True)),
        reopeners=reopeners,
        turn_ends=turn_ends,
        plain_content=_not_plain(in_content, turn_ends, trims_content),
        plain_reasoning=_not_plain(in_reasoning, turn_ends, trims_reasoning),
        shows_reasoning=not owns_all or declared is not None,
        strips_content_newlines=reasoning is not None and reasoning.strip_content_newlines,
        trims_content=trims_content,
        trims_reasoning=trims_reasoning,
        drops_after_call=tools.text_after == "drop" and syntax is not None,
        no_content=forced,
        hides_calls=hidden,
        known_names_only=isinstance(tools.syntax, XmlCalls) and tools.syntax.known_names_only,
        unfinished=tools.unfinished,
        malformed=tools.malformed or tools.unfinished,
        call_ids=tools.call_ids,
    )


def _not_plain(lexicon: Lexicon, turn_ends: TurnEnds, trims: bool) -> re.Pattern[str]:
    firsts = {marker[0] for marker in lexicon.markers} | turn_ends.first_characters
    parts = [f"[{re.escape(''.join(sorted(firsts)))}]"] if firsts else []
    if trims:
        parts.append(r"\s\Z")
    return re.compile("|".join(parts) or "(?!)")
