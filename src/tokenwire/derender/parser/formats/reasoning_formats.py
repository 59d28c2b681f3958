"""How models mark their reasoning."""

from __future__ import annotations

from tokenwire.derender.parser.format import ReasoningFormat

_CHATML = ("<|im_end|>",)
_CHATML_TURNS = ("<|im_start|>",)
_DEEPSEEK = ("<｜end▁of▁sentence｜>",)
_DEEPSEEK_TURNS = ("<｜User｜>", "<｜Assistant｜>")
_GLM_TURNS = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")

QWEN3 = ReasoningFormat(
    name="qwen3",
    turn_starts=_CHATML_TURNS,
    switch="enable_thinking",
    implicit_end=("<tool_call>",),
    stray_end="drop",
    markers_when_off=True,
    engine=True,
    turn_ends=_CHATML,
)
MIMO = ReasoningFormat(
    name="mimo",
    turn_starts=_CHATML_TURNS,
    switch="enable_thinking",
    implicit_end=("<tool_call>",),
    stray_end="drop",
    markers_when_off=True,
    engine=True,
    turn_ends=_CHATML,
)
STEP3P5 = ReasoningFormat(
    name="step3p5",
    turn_starts=_CHATML_TURNS,
    implicit_end=("<tool_call>",),
    stray_end="drop",
    trim=True,
    engine=True,
    turn_ends=_CHATML,
)
NEMOTRON_V3 = ReasoningFormat(
    name="nemotron_v3",
    turn_starts=_CHATML_TURNS,
    switch="enable_thinking",
    implicit_end=("<tool_call>",),
    stray_end="drop",
    trim=True,
    may_force_content=True,
    markers_when_off=True,
    engine=True,
    turn_ends=_CHATML,
)
GRANITE_THINKING = ReasoningFormat(
    name="granite_thinking_parser",
    turn_starts=("<|start_of_role|>",),
    switch="enable_thinking",
    implicit_end=("<tool_call>",),
    stray_end="drop",
    trim=True,
    may_force_content=True,
    strip_content_newlines=True,
    markers_when_off=True,
    engine=True,
    turn_ends=("<|end_of_text|>",),
)
SEED_OSS = ReasoningFormat(
    name="seed_oss",
    turn_starts=("<seed:bos>",),
    start=("<seed:think>",),
    end=("</seed:think>",),
    switch="enable_thinking",
    implicit_end=("<seed:tool_call>",),
    stray_end="drop",
    markers_when_off=True,
    engine=True,
    turn_ends=("<seed:eos>",),
)
DEEPSEEK_R1 = ReasoningFormat(name="deepseek_r1", turn_starts=_DEEPSEEK_TURNS, turn_ends=_DEEPSEEK)
DEEPSEEK_V3 = ReasoningFormat(name="deepseek_v3", turn_starts=_DEEPSEEK_TURNS, switch="any_true", turn_ends=_DEEPSEEK)
HOLO2 = ReasoningFormat(name="holo2", turn_starts=_CHATML_TURNS, switch="any_true_or_unset", turn_ends=_CHATML)
DEEPSEEK_V4 = ReasoningFormat(
    name="deepseek_v4",
    turn_starts=_DEEPSEEK_TURNS,
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
    turn_starts=_DEEPSEEK_TURNS,
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
    turn_starts=_GLM_TURNS,
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
    turn_starts=("<|im_user|>", "<|im_assistant|>", "<|im_system|>"),
    switch="any_true_or_unset",
    implicit_end=("<|tool_calls_section_begin|>",),
    stray_end="drop",
    trim=True,
    engine=True,
    turn_ends=_CHATML,
)
MINIMAX_M2 = ReasoningFormat(
    name="minimax_m2",
    turn_starts=("]~b]",),
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
STEP3 = ReasoningFormat(name="step3", turn_starts=("<|BOT|>",), keep_start=True, turn_ends=_DEEPSEEK)
ERNIE45 = ReasoningFormat(
    name="ernie45", turn_starts=("<|im_start|>",), dropped=("<response>", "</response>"), turn_ends=("</s>",)
)
OLMO3 = ReasoningFormat(name="olmo3", turn_starts=_CHATML_TURNS, turn_ends=_CHATML)
GEMMA4 = ReasoningFormat(
    name="gemma4",
    turn_starts=("<|turn>", "<|tool_response>"),
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
HUNYUAN_A13B = ReasoningFormat(
    name="hunyuan_a13b",
    start=("<think>\n",),
    end=("\n</think>\n<answer>\n", "\n</think>\n"),
    starts="begins",
    dropped=("\n</answer>",),
    turn_ends=("<|eos|>",),
)
POOLSIDE_V1 = ReasoningFormat(
    name="poolside_v1", turn_starts=("<assistant>",), switch="any_true", turn_ends=("</assistant>",)
)
HY_V3 = ReasoningFormat(name="hy_v3", switch="effort")
HY_V4 = ReasoningFormat(name="hy_v4", switch="effort")
K2_HORIZON = ReasoningFormat(
    name="k2_horizon",
    start=("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
    end=("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"),
    implicit_end=("<ifm|tool_calls>",),
    engine=True,
)
KIMI_K3 = ReasoningFormat(
    name="kimi_k3",
    turn_starts=("<|open|>message",),
    start=("<|open|>think<|sep|>",),
    end=("<|close|>think<|sep|>",),
    implicit_end=("<|open|>response<|sep|>", "<|open|>tools<|sep|>"),
    stray_end="drop",
    dropped=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    turn_ends=("<|im_end|>",),
)
COHERE_COMMAND3 = ReasoningFormat(
    name="cohere_command3",
    turn_starts=("<|START_OF_TURN_TOKEN|>",),
    start=("<|START_THINKING|>",),
    end=("<|END_THINKING|>",),
    starts="marker",
    prompt_opens=True,
    stray_end="drop",
    dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    turn_ends=("<|END_OF_TURN_TOKEN|>",),
)
COHERE_COMMAND4 = ReasoningFormat(
    name="cohere_command4",
    turn_starts=("<|START_OF_TURN_TOKEN|>",),
    start=("<|START_THINKING|>",),
    end=("<|END_THINKING|>",),
    starts="marker",
    prompt_opens=True,
    stray_end="drop",
    dropped=("<|START_TEXT|>", "<|END_TEXT|>"),
    turn_ends=("<|END_OF_TURN_TOKEN|>",),
)
INKLING = ReasoningFormat(
    name="inkling",
    turn_starts=("<|message_model|>", "<|message_user|>"),
    start=("<|content_thinking|>",),
    end=("<|end_message|>",),
    starts="marker",
    prompt_opens=True,
    reopens=True,
    trim=True,
    stray_end="drop",
    dropped=("<|message_model|>", "<|content_text|>"),
    engine=True,
    turn_ends=("<|content_model_end_sampling|>",),
)
PLAMO3 = ReasoningFormat(
    name="plamo3",
    start=("<|plamo:begin_think:plamo|>",),
    end=("<|plamo:end_think:plamo|>",),
    switch="enable_thinking",
    implicit_end=("<|plamo:begin_tool_requests:plamo|>",),
    reopens=True,
    stray_end="drop",
    engine=True,
    turn_ends=("<|plamo:tag|>",),
)
OPENAI_GPTOSS = ReasoningFormat(name="openai_gptoss", harmony=True, turn_ends=("<|return|>", "<|call|>"))

FORMATS = (
    QWEN3,
    MIMO,
    STEP3P5,
    NEMOTRON_V3,
    GRANITE_THINKING,
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
    HUNYUAN_A13B,
    POOLSIDE_V1,
    HY_V3,
    HY_V4,
    K2_HORIZON,
    KIMI_K3,
    COHERE_COMMAND3,
    COHERE_COMMAND4,
    INKLING,
    PLAMO3,
    OPENAI_GPTOSS,
)
