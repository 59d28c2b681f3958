"""Formats whose calls are JSON objects, or a name and JSON arguments."""

from __future__ import annotations

import msgspec

from tokenwire.derender.parser.format import Dialects, HeadedCalls, JsonCalls, ListedCalls, ToolFormat

_CHATML = ("<|im_end|>",)

HERMES = ToolFormat(
    name="hermes",
    syntax=JsonCalls(open=("<tool_call>",), close=("</tool_call>",), argument_keys=("arguments",)),
    text_after="drop",
    turn_ends=_CHATML,
)
LONGCAT = ToolFormat(
    name="longcat",
    syntax=JsonCalls(
        open=("<longcat_tool_call>",), close=("</longcat_tool_call>",), listed="maybe", argument_keys=("arguments",)
    ),
    text_after="drop",
    turn_ends=("</longcat_s>",),
)
GRANITE4 = ToolFormat(
    name="granite4",
    syntax=JsonCalls(open=("<tool_call>",), close=("</tool_call>",), argument_keys=("arguments",)),
    forced="json",
    turn_ends=("<|end_of_text|>",),
)
ERNIE45 = ToolFormat(
    name="ernie45",
    syntax=JsonCalls(
        open=("<tool_call>",),
        close=("</tool_call>",),
        argument_keys=("arguments",),
        needs_arguments=False,
        whole="always",
    ),
    text_after="drop",
    unfinished="drop",
    malformed="raw",
    forced="json",
    turn_ends=("</s>", "<|im_end|>"),
)
INTERNLM = ToolFormat(
    name="internlm",
    syntax=JsonCalls(
        open=("<|action_start|><|plugin|>",),
        close=("<|action_end|>",),
        argument_keys=("parameters", "arguments"),
        needs_arguments=False,
    ),
    text_after="drop",
    unfinished="drop",
    malformed="raw",
    forced="json",
    turn_ends=_CHATML,
)
LLAMA3_JSON = ToolFormat(
    name="llama3_json",
    syntax=JsonCalls(open=("<|python_tag|>",), bare="anywhere", listed="maybe", separators=";,", whole="listed"),
    text_after="drop",
    turn_ends=("<|eot_id|>", "<|eom_id|>"),
)
GRANITE = ToolFormat(
    name="granite",
    syntax=JsonCalls(
        open=("<|tool_call|>", "<tool_call>"), listed="always", argument_keys=("arguments",), needs_arguments=False
    ),
    engine=True,
    space="trim",
    unfinished="drop",
    forced="json",
    turn_ends=("<|end_of_text|>",),
)
GRANITE_20B_FC = ToolFormat(
    name="granite-20b-fc",
    syntax=JsonCalls(open=("<function_call>",), argument_keys=("arguments",)),
    forced="json",
    turn_ends=("<|endoftext|>",),
)
JAMBA = ToolFormat(
    name="jamba",
    syntax=JsonCalls(open=("<tool_calls>",), close=("</tool_calls>",), listed="always", argument_keys=("arguments",)),
    text_after="drop",
    forced="json",
    turn_ends=("<|endoftext|>",),
)
HUNYUAN_A13B = ToolFormat(
    name="hunyuan_a13b",
    syntax=JsonCalls(open=("<tool_calls>",), close=("</tool_calls>",), listed="always", argument_keys=("arguments",)),
    forced="json",
    turn_ends=("<|eos|>",),
)
PHI4_MINI_JSON = ToolFormat(
    name="phi4_mini_json",
    syntax=ListedCalls(open=("functools[",)),
    forced="json",
    turn_ends=("<|end|>", "<|endoftext|>"),
)
XLAM = ToolFormat(
    name="xlam",
    syntax=JsonCalls(
        open=("[TOOL_CALLS]", "<tool_call>", "```json\n"),
        close=("</tool_call>", "```"),
        bare="start",
        listed="always",
        argument_keys=("arguments",),
    ),
    forced="json",
    turn_ends=_CHATML,
)
GIGACHAT3 = ToolFormat(
    name="gigachat3",
    syntax=JsonCalls(
        open=(
            "<|function_call|>",
            "<|message_sep|>\n\nfunction call<|role_sep|>\n",
            "function call<|role_sep|>\n",
        ),
        argument_keys=("arguments",),
        objects_only=True,
    ),
    forced="json",
    turn_ends=("</s>", "<|message_sep|>"),
)
APERTUS = ToolFormat(
    name="apertus",
    syntax=JsonCalls(
        open=("<|tools_prefix|>",),
        close=("<|tools_suffix|>",),
        cut_close_is_text=True,
        listed="always",
        name_is_key=True,
    ),
    space="trim",
    unfinished="drop",
    malformed="raw",
    forced="json",
    turn_ends=("<|assistant_end|>",),
)
_MISTRAL_HEADED = HeadedCalls(
    open=("[TOOL_CALLS]",), name_end=("[ARGS]", "{"), close=("[TOOL_CALLS]",), balanced=True, partial_name=True
)
_MISTRAL_LIST = JsonCalls(
    open=("[TOOL_CALLS]",), listed="maybe", argument_keys=("arguments",), needs_arguments=False, repeats=True
)
MISTRAL = ToolFormat(
    name="mistral",
    syntax=msgspec.structs.replace(_MISTRAL_HEADED, or_json=JsonCalls(listed="maybe", needs_arguments=False)),
    dialects=Dialects(
        token="[ARGS]",  # since tokenizer version 11; models before it write a list, and no marker where one is forced
        with_token=_MISTRAL_HEADED,
        without_token=_MISTRAL_LIST,
        forced_without_token=msgspec.structs.replace(_MISTRAL_LIST, bare="start"),
    ),
    engine=True,
    unfinished="body",
    call_ids="nine",
    turn_ends=("</s>",),
)
DEEPSEEK_V3 = ToolFormat(
    name="deepseek_v3",
    syntax=HeadedCalls(
        section=("<｜tool▁calls▁begin｜>",),
        section_close=("<｜tool▁calls▁end｜>",),
        open=("<｜tool▁call▁begin｜>",),
        name_after="<｜tool▁sep｜>",
        name_end=("\n```json\n",),
        close=("```<｜tool▁call▁end｜>", "<｜tool▁call▁end｜>"),
    ),
    unfinished="drop",
    turn_ends=("<｜end▁of▁sentence｜>",),
)
DEEPSEEK_V31 = ToolFormat(
    name="deepseek_v31",
    syntax=HeadedCalls(
        section=("<｜tool▁calls▁begin｜>",),
        section_close=("<｜tool▁calls▁end｜>",),
        open=("<｜tool▁call▁begin｜>",),
        name_end=("<｜tool▁sep｜>",),
        close=("<｜tool▁call▁end｜>",),
    ),
    unfinished="drop",
    turn_ends=("<｜end▁of▁sentence｜>",),
)
KIMI_K2 = ToolFormat(
    name="kimi_k2",
    syntax=HeadedCalls(
        section=("<|tool_calls_section_begin|>",),
        section_close=("<|tool_calls_section_end|>",),
        open=("<|tool_call_begin|>",),
        name_end=("<|tool_call_argument_begin|>",),
        close=("<|tool_call_end|>",),
        name_pattern=r"(?:functions\.)?([^:]*):.*\d",
        id_in_header=True,
        partial_name=True,
    ),
    engine=True,
    text_after="drop",
    unfinished="drop",
    call_ids="functions",
    turn_ends=_CHATML,
)

FORMATS = (
    HERMES,
    LONGCAT,
    GRANITE4,
    ERNIE45,
    INTERNLM,
    LLAMA3_JSON,
    GRANITE,
    GRANITE_20B_FC,
    JAMBA,
    HUNYUAN_A13B,
    PHI4_MINI_JSON,
    XLAM,
    GIGACHAT3,
    APERTUS,
    MISTRAL,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    KIMI_K2,
)
