"""Formats whose arguments are no JSON: XML parameters, Python calls, tags of their own, and Harmony."""

from __future__ import annotations

from tokenwire.derender.parser.format import HarmonyCalls, PythonCalls, TaggedCalls, ToolFormat, XmlCalls

_CHATML = ("<|im_end|>",)


def _function_tags(section: str, section_close: str, trim: str = "newline") -> XmlCalls:
    """Qwen's `<function=f><parameter=p>` between markers of the model's own."""
    return XmlCalls(
        section=(section,),
        section_close=(section_close,),
        open=("<function=",),
        name_end=(">", "</function>"),
        call_close=("</function>",),
        parameter="<parameter=",
        parameter_pattern=r"<parameter=(?P<name>[^>]*)>",
        parameter_close="</parameter>",
        trim="newline" if trim == "newline" else "none",
    )


QWEN3_CODER = ToolFormat(
    name="qwen3_coder",
    syntax=_function_tags("<tool_call>", "</tool_call>"),
    engine=True,
    space="trim",
    unfinished="drop",
    turn_ends=_CHATML,
)
MIMO = ToolFormat(
    name="mimo",
    syntax=_function_tags("<tool_call>", "</tool_call>", trim="none"),
    engine=True,
    space="trim",
    unfinished="drop",
    turn_ends=_CHATML,
)
SEED_OSS = ToolFormat(
    name="seed_oss",
    syntax=_function_tags("<seed:tool_call>", "</seed:tool_call>"),
    engine=True,
    space="trim",
    unfinished="drop",
    forced="json",
    turn_ends=("<seed:eos>",),
)


def _dsml(name: str, section: tuple[str, ...], section_close: str, space: str = "") -> ToolFormat:
    """DeepSeek's DSML; `space` stands before each tag's name from V4.1 on."""
    return ToolFormat(
        name=name,
        syntax=XmlCalls(
            section=section,
            section_close=(section_close,),
            open=(f'<｜DSML｜{space}invoke name="',),
            name_end=('">',),
            call_close=(f"</｜DSML｜{space}invoke>",),
            parameter=f"<｜DSML｜{space}parameter",
            parameter_pattern=rf'<｜DSML｜{space}parameter\s+name="(?P<name>[^"]+)"(?:\s+string="(?P<text>[^"]*)")?\s*>',
            parameter_close=f"</｜DSML｜{space}parameter>",
            schema_only=False,
            unwrap=("arguments", "input"),
        ),
        engine=True,
        text_after="drop",
        unfinished="drop",
        turn_ends=("<｜end▁of▁sentence｜>",),
    )


DEEPSEEK_V32 = _dsml("deepseek_v32", ("<｜DSML｜function_calls>",), "</｜DSML｜function_calls>")
DEEPSEEK_V4 = _dsml(
    "deepseek_v4",
    ("<｜DSML｜tool_calls>", "<｜DSML｜toolcalls>", "<｜DSML｜tool>"),
    "</｜DSML｜tool_calls>",
)
DEEPSEEK_V41 = _dsml("deepseek_v41", ("<｜DSML｜ calls>",), "</｜DSML｜ calls>", space=" ")

GLM45 = ToolFormat(
    name="glm45",
    syntax=XmlCalls(
        section=("<tool_call>",),
        section_is_call=True,
        name_end=("<arg_key>", "</tool_call>"),
        call_close=("</tool_call>",),
        parameter="<arg_key>",
        parameter_pattern=r"<arg_key>(?P<name>[^<]*)</arg_key>\s*<arg_value>",
        parameter_close="</arg_value>",
        known_names_only=True,
        close_context=r"\n?<tool_call>\w",
    ),
    engine=True,
    space="trim",
    unfinished="drop",
    turn_ends=("<|user|>", "<|observation|>", "<|endoftext|>"),
)
MINIMAX_M2 = ToolFormat(
    name="minimax_m2",
    syntax=XmlCalls(
        section=("<minimax:tool_call>",),
        section_close=("</minimax:tool_call>",),
        open=('<invoke name="', "<invoke name='", "<invoke name="),
        name_end=('">', "'>", ">"),
        call_close=("</invoke>",),
        parameter="<parameter name=",
        parameter_pattern=(
            r"<parameter name="
            r"(?:\"(?P<name_double>[^\"]*)\"|'(?P<name_single>[^']*)'|(?P<name_bare>[^>\s\"'][^>\s]*))\s*>"
        ),
        parameter_close="</parameter>",
        known_names_only=True,
    ),
    engine=True,
    space="trim",
    unfinished="drop",
    turn_ends=("[e~[",),
)
STEP3 = ToolFormat(
    name="step3",
    syntax=XmlCalls(
        section=("<｜tool_calls_begin｜>",),
        section_close=("<｜tool_calls_end｜>",),
        open=('<steptml:invoke name="',),
        name_end=('">',),
        call_close=("</steptml:invoke>",),
        parameter="<steptml:parameter",
        parameter_pattern=r'<steptml:parameter name="(?P<name>[^"]+)">',
        parameter_close="</steptml:parameter>",
        trim="space",
        partial_name=False,
        open_alone=False,
        typed_kinds=("integer", "number", "boolean", "null"),
    ),
    space="trim",
    forced="json",
    turn_ends=("<｜end▁of▁sentence｜>",),
)
PYTHONIC = ToolFormat(
    name="pythonic",
    syntax=PythonCalls(bare=True),
    forced="json",
    turn_ends=("<|eot_id|>", "<|eom_id|>"),
)
LLAMA4_PYTHONIC = ToolFormat(
    name="llama4_pythonic",
    syntax=PythonCalls(bare=True, first_only=True, open=("<|python_start|>",), close=("<|python_end|>",)),
    forced="json",
    turn_ends=("<|eot|>", "<|eom|>"),
)
LFM2 = ToolFormat(
    name="lfm2",
    syntax=PythonCalls(open=("<|tool_call_start|>",), close=("<|tool_call_end|>",)),
    space="trim",
    forced="json",
    turn_ends=_CHATML,
)
OLMO3 = ToolFormat(
    name="olmo3",
    syntax=PythonCalls(open=("<function_calls>",), close=("</function_calls>",), listed=False),
    forced="json",
    turn_ends=_CHATML,
)
FUNCTIONGEMMA = ToolFormat(
    name="functiongemma",
    syntax=TaggedCalls(
        open=("<start_function_call>",), close=("<end_function_call>",), quote="<escape>", quoted_only=True
    ),
    space="trim",
    forced="json",
    turn_ends=("<end_of_turn>",),
)
GEMMA4 = ToolFormat(
    name="gemma4",
    syntax=TaggedCalls(open=("<|tool_call>",), close=("<tool_call|>",), quote='<|"|>', repair=True, partial_name=True),
    engine=True,
    space="trim",
    unfinished="drop",
    turn_ends=("<turn|>",),
)
OPENAI = ToolFormat(
    name="openai",
    syntax=HarmonyCalls(),
    turn_ends=("<|return|>", "<|call|>"),
)

FORMATS = (
    QWEN3_CODER,
    MIMO,
    SEED_OSS,
    DEEPSEEK_V32,
    DEEPSEEK_V4,
    DEEPSEEK_V41,
    GLM45,
    MINIMAX_M2,
    STEP3,
    PYTHONIC,
    LLAMA4_PYTHONIC,
    LFM2,
    OLMO3,
    FUNCTIONGEMMA,
    GEMMA4,
    OPENAI,
)
