"""The argument syntaxes, one file each, behind one interface (`base.CallSyntax`)."""

from __future__ import annotations

from functools import lru_cache

from tokenwire.derender.parser.format import (
    BareArguments,
    HarmonyCalls,
    HeadedCalls,
    JsonCalls,
    ListedCalls,
    PythonCalls,
    Syntax,
    TaggedCalls,
    XmlCalls,
)
from tokenwire.derender.parser.syntaxes.bare_arguments import BareSyntax
from tokenwire.derender.parser.syntaxes.base import CallSyntax
from tokenwire.derender.parser.syntaxes.harmony import HarmonySyntax
from tokenwire.derender.parser.syntaxes.headed_calls import HeadedSyntax
from tokenwire.derender.parser.syntaxes.json_calls import JsonSyntax
from tokenwire.derender.parser.syntaxes.listed_calls import ListedSyntax
from tokenwire.derender.parser.syntaxes.python_calls import PythonSyntax
from tokenwire.derender.parser.syntaxes.tagged_calls import TaggedSyntax
from tokenwire.derender.parser.syntaxes.xml_calls import XmlSyntax


@lru_cache(maxsize=256)
def make_syntax(data: Syntax) -> CallSyntax:
    """The reader of a syntax's data."""
    match data:
        case JsonCalls():
            return JsonSyntax(data)
        case ListedCalls():
            return ListedSyntax(data)
        case HeadedCalls():
            return HeadedSyntax(data)
        case XmlCalls():
            return XmlSyntax(data)
        case PythonCalls():
            return PythonSyntax(data)
        case TaggedCalls():
            return TaggedSyntax(data)
        case HarmonyCalls():
            return HarmonySyntax()
        case BareArguments():
            return BareSyntax()
