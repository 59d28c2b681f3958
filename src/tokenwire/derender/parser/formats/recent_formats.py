"""Formats of models for which there is no reference data here, written from their documented markup."""

from __future__ import annotations

from tokenwire.derender.parser.format import HeadedCalls, JsonCalls, ToolFormat, XmlCalls

DOTS = ToolFormat(
    name="dots",
    syntax=XmlCalls(
        section=("<dots_function_call>",),
        section_close=("</dots_function_call>",),
        open=('<invoke name="', "<invoke name='", "<invoke name="),
        name_end=('">', "'>", ">"),
        call_close=("</invoke>",),
        parameter="<parameter name=",
        parameter_pattern=(
            r"<parameter name="
            r"(?:\"(?P<name_double>[^\"]*)\"|'(?P<name_single>[^']*)'|(?P<name_bare>[^>\s\"'][^>\s]*))\s*>"
        ),
        parameter_close="</parameter>",
        open_alone=False,
    ),
)
POOLSIDE_V1 = ToolFormat(
    name="poolside_v1",
    syntax=XmlCalls(
        section=("<tool_call>",),
        section_is_call=True,
        name_end=("<arg_key>", "</tool_call>"),
        call_close=("</tool_call>",),
        parameter="<arg_key>",
        parameter_pattern=r"<arg_key>(?P<name>[^<]*)</arg_key>\s*<arg_value>",
        parameter_close="</arg_value>",
        close_context=r"\n?<tool_call>\w",
    ),
    turn_ends=("</assistant>",),
)
HY_V3 = ToolFormat(
    name="hy_v3",
    syntax=XmlCalls(
        section=("<tool_calls>",),
        section_close=("</tool_calls>",),
        open=("<tool_call>",),
        name_end=("<tool_sep>", "<arg_key>", "</tool_call>"),
        call_close=("</tool_call>",),
        parameter="<arg_key>",
        parameter_pattern=r"<arg_key>(?P<name>[^<]*)</arg_key>\s*<arg_value>",
        parameter_close="</arg_value>",
        partial_name=False,
    ),
)
HY_V4 = ToolFormat(name="hy_v4", syntax=HY_V3.syntax)
K2_HORIZON = ToolFormat(
    name="k2_horizon",
    syntax=XmlCalls(
        section=("<ifm|tool_calls>",),
        section_close=("</ifm|tool_calls>",),
        open=("<ifm|tool_call>",),
        name_end=("<ifm|arg_key>", "</ifm|tool_call>"),
        call_close=("</ifm|tool_call>",),
        parameter="<ifm|arg_key>",
        parameter_pattern=(
            r"<ifm\|arg_key>(?P<name>[^<]*)</ifm\|arg_key>\s*"
            r"(?:<ifm\|arg_type>(?P<text>[^<]*)</ifm\|arg_type>\s*)?<ifm\|arg_value>"
        ),
        parameter_close="</ifm|arg_value>",
        text_word="string",
        schema_only=False,
        open_alone=False,
    ),
    engine=True,
)
MINICPM5 = ToolFormat(
    name="minicpm5",
    syntax=XmlCalls(
        open=('<function name="', "<function name='"),
        name_end=('">', "'>"),
        call_close=("</function>",),
        parameter="<param name=",
        parameter_pattern=r"<param name=(?:\"(?P<name_double>[^\"]*)\"|'(?P<name_single>[^']*)')\s*>",
        parameter_close="</param>",
        partial_name=False,
    ),
    forced="json",
)
KIMI_K3 = ToolFormat(
    name="kimi_k3",
    syntax=XmlCalls(
        section=("<|open|>tools<|sep|>",),
        section_close=("<|close|>tools<|sep|>",),
        open=("<|open|>call",),
        name_end=("<|sep|>",),
        name_pattern=r'tool="([^"]*)"',
        call_close=("<|close|>call<|sep|>",),
        parameter="<|open|>argument",
        parameter_pattern=r'<\|open\|>argument\s+key="(?P<name>[^"]*)"(?:\s+type="(?P<text>[^"]*)")?\s*<\|sep\|>',
        parameter_close="<|close|>argument<|sep|>",
        text_word="string",
        schema_only=False,
        partial_name=False,
        open_alone=False,
    ),
    call_ids="functions",
    turn_ends=("<|im_end|>",),
)
COHERE_COMMAND3 = ToolFormat(
    name="cohere_command3",
    syntax=JsonCalls(
        open=("<|START_ACTION|>",),
        close=("<|END_ACTION|>",),
        listed="always",
        name_key="tool_name",
        argument_keys=("parameters",),
        needs_arguments=False,
    ),
    turn_ends=("<|END_OF_TURN_TOKEN|>",),
)
COHERE_COMMAND4 = ToolFormat(name="cohere_command4", syntax=COHERE_COMMAND3.syntax, turn_ends=COHERE_COMMAND3.turn_ends)
INKLING = ToolFormat(
    name="inkling",
    syntax=JsonCalls(
        open=("<|content_invoke_tool_json|>",),
        close=("<|end_message|>",),
        argument_keys=("args",),
        needs_arguments=False,
    ),
    engine=True,
    unfinished="drop",
    turn_ends=("<|content_model_end_sampling|>",),
)
PLAMO3 = ToolFormat(
    name="plamo3",
    syntax=HeadedCalls(
        section=("<|plamo:begin_tool_requests:plamo|>",),
        section_close=("<|plamo:end_tool_requests:plamo|>",),
        open=("<|plamo:begin_tool_name:plamo|>",),
        name_end=("<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>",),
        name_pattern=r"(?s)(.*?)\s*(?:<\|plamo:end_tool_name:plamo\|>.*)?\Z",
        close=("<|plamo:end_tool_arguments:plamo|>",),
    ),
    engine=True,
    unfinished="drop",
    turn_ends=("<|plamo:tag|>",),
)

FORMATS = (
    DOTS,
    POOLSIDE_V1,
    HY_V3,
    HY_V4,
    K2_HORIZON,
    MINICPM5,
    KIMI_K3,
    COHERE_COMMAND3,
    COHERE_COMMAND4,
    INKLING,
    PLAMO3,
)
