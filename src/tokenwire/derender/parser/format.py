"""What a model's output format is, as data.

The border it guards: everything that differs between models is a field of these records, and nothing in the machine
asks for a model by name. A new format is a new entry in `formats/`, made of these parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

CallIds: TypeAlias = Literal["random", "functions", "nine"]
"""`chatcmpl-tool-` and random hex; Kimi's `functions.name:idx`; nine letters and digits."""


class JsonCalls(msgspec.Struct, frozen=True, kw_only=True, tag="json"):
    """Calls as JSON objects, one after another or in a list: `{"name": "f", "arguments": {...}}`."""

    open: tuple[str, ...] = ()
    """Markers before a call, or before the list of calls."""
    close: tuple[str, ...] = ()
    """Markers after it; empty when the JSON's own end is the end."""
    cut_close_is_text: bool = False
    """A marker after the calls that the output's end cuts off is text."""
    bare: Literal["", "start", "anywhere"] = ""
    """Whether a call may come with no marker: never, as the first thing of the content, or anywhere."""
    listed: Literal["never", "always", "maybe"] = "never"
    separators: str = ""
    """Characters that may stand between two calls without a marker."""
    name_key: str = "name"
    argument_keys: tuple[str, ...] = ("arguments", "parameters")
    name_is_key: bool = False
    """`{"f": {...}}` instead of a name member."""
    needs_arguments: bool = True
    """Whether an object without arguments is no call (its text is kept), or a call of `{}`."""
    whole: Literal["never", "listed", "always"] = "never"
    """Whether a call (or one in a list) is sent only once its object is complete; with `always` and `close`, only once
    the marker has come, and what is not JSON up to there is text."""
    objects_only: bool = False
    """Arguments that are no object make it no call."""
    repeats: bool = False
    """A marker right after a marker is the same one once more."""


class ListedCalls(msgspec.Struct, frozen=True, kw_only=True, tag="listed"):
    """Calls as one JSON list that ends at the first `]`, even one that closes something else.

    The list is read once it is whole. What stands up to that `]` is the calls if it is a JSON list of calls, text if
    it is JSON that is no list of calls, and else nothing, as is whatever follows it: no reader can tell where the list
    would have ended. A list that is cut off before any `]` is read as far as it goes.
    """

    open: tuple[str, ...]
    """Markers before the list, with its bracket."""


class HeadedCalls(msgspec.Struct, frozen=True, kw_only=True, tag="headed"):
    """Calls as a header with the name, then raw JSON arguments up to a marker or to the JSON's own end."""

    section: tuple[str, ...] = ()
    section_close: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    name_after: str = ""
    """The header up to this text is not part of the name."""
    name_end: tuple[str, ...] = ()
    """Ends the header; `{` stays part of the arguments."""
    close: tuple[str, ...] = ()
    name_pattern: str = ""
    """The name is group 1 of this pattern on the stripped header, the whole match is the id if `id_in_header`."""
    id_in_header: bool = False
    balanced: bool = False
    """The arguments end where the JSON value ends, too."""
    partial_name: bool = False
    """A name that is cut off is still a call."""
    or_json: JsonCalls | None = None
    """How the calls are read if a JSON bracket comes where the name should."""


class XmlCalls(msgspec.Struct, frozen=True, kw_only=True, tag="xml"):
    """Calls with one element per parameter, typed by the tool's schema."""

    section: tuple[str, ...] = ()
    section_close: tuple[str, ...] = ()
    section_is_call: bool = False
    """The section marker opens the call itself (the name follows it at once)."""
    open: tuple[str, ...] = ()
    """Text up to the name."""
    name_end: tuple[str, ...] = ()
    """First text after the name; kept for the parameters if it begins one."""
    name_pattern: str = ""
    """The name is group 1 of this pattern in the text up to there; empty for all of it."""
    call_close: tuple[str, ...] = ()
    parameter: str = ""
    """Begins a parameter."""
    parameter_pattern: str = ""
    """The parameter's head from its beginning on; groups `name` and, if the model says it, `text`."""
    text_word: str = "true"
    """What group `text` is for a value that is text."""
    parameter_close: str = ""
    trim: Literal["none", "newline", "space"] = "none"
    """What is cut off at both ends of a value: nothing, one newline, all white space."""
    schema_only: bool = True
    """Values are typed by the schema alone; else a value without a text flag is JSON if it parses."""
    partial_name: bool = True
    known_names_only: bool = False
    unwrap: tuple[str, ...] = ()
    """A single parameter of this name that the schema does not have holds all arguments as one object."""
    open_alone: bool = True
    """A call may come without the section's marker."""
    close_context: str = ""
    """What must follow a call's end marker inside a value for it to count, as a pattern; else it is the value's."""
    typed_kinds: tuple[str, ...] = ()
    """JSON types that values are made into; empty for all."""


class PythonCalls(msgspec.Struct, frozen=True, kw_only=True, tag="python"):
    """Calls as Python calls with keyword arguments, in a list or one a line."""

    open: tuple[str, ...] = ()
    close: tuple[str, ...] = ()
    bare: bool = False
    """The list may come with no marker as the first thing of the content."""
    first_only: bool = False
    """The marker counts only as the first thing of the content, too."""
    listed: bool = True


class TaggedCalls(msgspec.Struct, frozen=True, kw_only=True, tag="tagged"):
    """Gemma's calls: `call:f{key:<q>text<q>,n:3}` with a quote of its own."""

    open: tuple[str, ...] = ()
    close: tuple[str, ...] = ()
    quote: str = ""
    quoted_only: bool = False
    """Values without the quote are left out, quoted values are JSON if they parse; else the schema types them."""
    repair: bool = False
    partial_name: bool = False


class HarmonyCalls(msgspec.Struct, frozen=True, kw_only=True, tag="harmony"):
    """Messages on channels; a recipient `functions.f` makes one a call."""


class BareArguments(msgspec.Struct, frozen=True, kw_only=True, tag="bare"):
    """All of the content is the arguments of the one function that the request forces."""


Syntax: TypeAlias = (
    JsonCalls | ListedCalls | HeadedCalls | XmlCalls | PythonCalls | TaggedCalls | HarmonyCalls | BareArguments
)

FORCED_LIST = JsonCalls(bare="start", listed="always", argument_keys=("parameters", "arguments"))
"""The JSON list of a required call, as the reference's grammar makes it."""


class Dialects(msgspec.Struct, frozen=True, kw_only=True):
    """Two ways to write one format's calls, told apart by a token that only one of the models' tokenizers has."""

    token: str
    with_token: Syntax
    without_token: Syntax
    forced_without_token: Syntax | None = None
    """`forced_syntax` of a model without the token."""


class ToolFormat(msgspec.Struct, frozen=True, kw_only=True):
    """How a model writes its calls, and what becomes of the text around them."""

    name: str
    syntax: Syntax
    engine: bool = False
    """The reference parses this format (and hides unfinished markup) even when no tool may be called."""
    text_after: Literal["keep", "drop"] = "keep"
    """Content after a call."""
    space: Literal["keep", "trim"] = "keep"
    """White space around content that stands beside calls. Content of white space alone is dropped either way."""
    unfinished: Literal["raw", "body", "drop"] = "raw"
    """Text of a call that never got so far as to be announced: kept, kept without its marker, dropped."""
    malformed: Literal["", "raw", "body", "drop"] = ""
    """The same for what turns out to be no call before the output ends; empty for as `unfinished` says."""
    forced: Literal["json", "native"] = "native"
    """A required or named call comes as plain JSON, or as the model writes its calls anyway."""
    forced_syntax: Syntax | None = None
    """How a required or named call is read if it comes natively, but in another way than other calls."""
    dialects: Dialects | None = None
    """What `syntax` and `forced_syntax` are for one tokenizer; without one, `syntax` reads both dialects as it can."""
    call_ids: CallIds = "random"
    turn_ends: tuple[str, ...] = ()
    """Texts of tokens that end the turn."""

    def for_tokenizer(self, has_token: Callable[[str], bool]) -> ToolFormat:
        """This format as the models of one tokenizer write it; `has_token` says whether a text is one of its tokens."""
        dialects = self.dialects
        if dialects is None:
            return self
        if has_token(dialects.token):
            return msgspec.structs.replace(self, syntax=dialects.with_token, dialects=None)
        return msgspec.structs.replace(
            self, syntax=dialects.without_token, forced_syntax=dialects.forced_without_token, dialects=None
        )


class ReasoningFormat(msgspec.Struct, frozen=True, kw_only=True):
    """How a model marks its reasoning."""

    name: str
    start: tuple[str, ...] = ("<think>",)
    end: tuple[str, ...] = ("</think>",)
    starts: Literal["open", "marker", "begins"] = "open"
    """Output begins inside reasoning; or reasoning begins at a marker anywhere; or only at one that comes first."""
    switch: Literal["", "any_true", "any_true_or_unset", "enable_thinking", "effort"] = ""
    """How `chat_template_kwargs` turn reasoning off: see `reasoning.thinking_enabled`."""
    turn_starts: tuple[str, ...] = ()
    """Texts that begin a turn in the prompt; what stands before the last one says nothing about this turn."""
    prompt_closes: bool = True
    """A prompt that ends after closed reasoning means that the output has none."""
    prompt_opens: bool = False
    """A prompt that ends in open reasoning means that the output begins inside it."""
    implicit_end: tuple[str, ...] = ()
    """Tool markers that end reasoning and are not eaten."""
    keep_start: bool = False
    """The start marker is part of the reasoning's text."""
    trim: bool = False
    """White space at the end of reasoning is dropped."""
    reopens: bool = False
    """The start marker opens reasoning again later on."""
    stray_end: Literal["keep", "drop"] = "keep"
    """An end marker in the content."""
    prefix: str = ""
    """Dropped at the very beginning of reasoning."""
    dropped: tuple[str, ...] = ()
    """Further markers in the content that are no text."""
    content_prefix: str = ""
    """Put before the content of an output whose prompt did not close reasoning; there is no reasoning then."""
    may_force_content: bool = False
    """With `force_nonempty_content` in the template's settings, reasoning that no content follows is the content.
    Only then reasoning is held until it is known what follows."""
    strip_content_newlines: bool = False
    """Newlines at the beginning of the content after reasoning are dropped."""
    engine: bool = False
    turn_ends: tuple[str, ...] = ()
    harmony: bool = False
    """Reasoning is the analysis channel of a Harmony output; the other fields do not count."""
    markers_when_off: bool = False
    """The markers still count as such when thinking is turned off."""


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """A tool format and a reasoning format together; either may be missing."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None

    @property
    def name(self) -> str:
        """`tools+reasoning`, for messages."""
        return "+".join(part.name for part in (self.tools, self.reasoning) if part) or "plain"

    def for_tokenizer(self, has_token: Callable[[str], bool]) -> Format:
        """See `ToolFormat.for_tokenizer`."""
        return (
            self if self.tools is None else Format(tools=self.tools.for_tokenizer(has_token), reasoning=self.reasoning)
        )

    @property
    def is_engine(self) -> bool:
        """Both parts are of the kind that the reference parses even when no tool may be called."""
        return all(part.engine for part in (self.tools, self.reasoning) if part)
