"""How models mark their reasoning."""

from __future__ import annotations

from tokenwire.derender.parser.format import ReasoningFormat

_CHATML = ("<|im_end|>",)
_DEEPSEEK = ("<｜end▁of▁sentence｜>",)

QWEN3 = ReasoningFormat(
    name="qwen3",
    switch="enable_thinking",
    implicit_end=("<tool_call>",),
    stray_end="drop",
    markers_when_off=True,
    engine=True,
    turn_ends=_CHATML,
)
MIMO = ReasoningFormat(
    name="mimo",
    switch="enable_thinking",
    implicit_end=("<tool_call>",),
    stray_end="drop",
    markers_when_off=True,
    engine=True,
    turn_ends=_CHATML,
)
STEP3P5 = ReasoningFormat(
    name="step3p5",
    implicit_end=("<tool_call>",),
    stray_end="drop",
    trim=True,
    engine=True,
    turn_ends=_CHATML,
)
NEMOTRON_V3 = ReasoningFormat(
    name="nemotron_v3",
    switch="enable_thinking",
    implicit_end=("<tool_call>",),
    stray_end="drop",
    trim=True,
    markers_when_off=True,
    engine=True,
    turn_ends=_CHATML,
)
SEED_OSS = ReasoningFormat(
    name="seed_oss",
    start=("<seed:think>",),
    end=("</seed:think>",),
    switch="enable_thinking",
    implicit_end=("<seed:tool_call>",),
    stray_end="drop",
    markers_when_off=True,
    engine=True,
    turn_ends=("<seed:eos>",),
)
DEEPSEEK_R1 = ReasoningFormat(name="deepseek_r1", turn_ends=_DEEPSEEK)
DEEPSEEK_V3 = ReasoningFormat(name="deepseek_v3", switch="any_true", turn_ends=_DEEPSEEK)
HOLO2 = ReasoningFormat(name="holo2", switch="any_true_or_unset", turn_ends=_CHATML)
DEEPSEEK_V4 = ReasoningFormat(
    name="deepseek_v4",
    switch="any_true_or_unset",
    implicit_end=("<｜DSML｜tool_calls>", "<｜DSML｜toolcalls>", "<｜DSML｜tool>"),
    reopens=True,
    stray_end="drop",
    trim=True,
    engine=True,
    turn_ends=_DEEPSEEK,
)
DEEPSEEK_V41 = ReasoningFormat(
    name="deepseek_v41",
    switch="any_true_or_unset",
    implicit_end=("<｜DSML｜ calls>",),
    reopens=True,
    stray_end="drop",
    trim=True,
    engine=True,
    turn_ends=_DEEPSEEK,
)
GLM45 = ReasoningFormat(
    name="glm45",
    switch="any_true_or_unset",
    implicit_end=("<tool_call>",),
    reopens=True,
    stray_end="drop",
    trim=True,
    engine=True,
    turn_ends=("<|user|>", "<|observation|>", "<|endoftext|>"),
)
KIMI_K2 = ReasoningFormat(
    name="kimi_k2",
    switch="any_true_or_unset",
    implicit_end=("<|tool_calls_section_begin|>",),
    stray_end="drop",
    trim=True,
    engine=True,
    turn_ends=_CHATML,
)
MINIMAX_M2 = ReasoningFormat(
    name="minimax_m2",
    implicit_end=("<minimax:tool_call>",),
    stray_end="drop",
    trim=True,
    engine=True,
    turn_ends=("[e~[",),
)
MINIMAX_M2_APPEND_THINK = ReasoningFormat(
    name="minimax_m2_append_think", starts="marker", start=(), end=(), content_prefix="<think>", turn_ends=("[e~[",)
)
MISTRAL = ReasoningFormat(
    name="mistral",
    start=("[THINK]",),
    end=("[/THINK]",),
    starts="marker",
    implicit_end=("[TOOL_CALLS]",),
    reopens=True,
    stray_end="drop",
    trim=True,
    engine=True,
    turn_ends=("</s>",),
)
GRANITE = ReasoningFormat(
    name="granite",
    start=("Here is my thought process:", "Here's my thought process:"),
    end=("Here is my response:", "Here's my response:"),
    starts="begins",
    turn_ends=("<|end_of_text|>",),
)
STEP3 = ReasoningFormat(name="step3", keep_start=True, turn_ends=_DEEPSEEK)
ERNIE45 = ReasoningFormat(name="ernie45", wrapper=("<response>", "</response>"), turn_ends=("</s>",))
OLMO3 = ReasoningFormat(name="olmo3", turn_ends=_CHATML)
GEMMA4 = ReasoningFormat(
    name="gemma4",
    start=("<|channel>",),
    end=("<channel|>",),
    starts="marker",
    prefix="thought\n",
    prompt_opens=True,
    implicit_end=("<|tool_call>",),
    reopens=True,
    stray_end="drop",
    trim=True,
    engine=True,
    turn_ends=("<turn|>",),
)
OPENAI_GPTOSS = ReasoningFormat(name="openai_gptoss", harmony=True, turn_ends=("<|return|>", "<|call|>"))

FORMATS = (
    QWEN3,
    MIMO,
    STEP3P5,
    NEMOTRON_V3,
    SEED_OSS,
    DEEPSEEK_R1,
    DEEPSEEK_V3,
    HOLO2,
    DEEPSEEK_V4,
    DEEPSEEK_V41,
    GLM45,
    KIMI_K2,
    MINIMAX_M2,
    MINIMAX_M2_APPEND_THINK,
    MISTRAL,
    GRANITE,
    STEP3,
    ERNIE45,
    OLMO3,
    GEMMA4,
    OPENAI_GPTOSS,
)
