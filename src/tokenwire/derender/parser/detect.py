"""Which format a chat template speaks, for `--tool-call-parser auto` and `--reasoning-parser auto`.

The border it guards: a guess is made only from markers that a format alone has; where none is found the answer is
no format, and output is passed on as it is.
"""

from __future__ import annotations

from typing import NamedTuple


class Detected(NamedTuple):
    """Names for `find_format`; null where the template shows no such format."""

    tool_parser: str | None
    reasoning_parser: str | None


# The first row whose words all stand in the template wins, so special formats come before those they resemble.
_TOOLS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<|channel|>", "<|message|>", "functions"), "openai"),
    (("<|tool_calls_section_begin|>",), "kimi_k2"),
    (("<|open|>", "tools", "<|sep|>"), "kimi_k3"),
    (("｜DSML｜", "function_calls"), "deepseek_v32"),
    (("｜DSML｜", "tool_calls"), "deepseek_v4"),
    (("<｜tool▁calls▁begin｜>", "```json"), "deepseek_v3"),
    (("<｜tool▁calls▁begin｜>",), "deepseek_v31"),
    (("<｜tool_calls_begin｜>", "steptml"), "step3"),
    (("<seed:tool_call>",), "seed_oss"),
    (("<minimax:tool_call>",), "minimax_m2"),
    (("<longcat_tool_call>",), "longcat"),
    (("<dots_function_call>",), "dots"),
    (("<ifm|tool_calls>",), "k2_horizon"),
    (("<|content_invoke_tool_json|>",), "inkling"),
    (("plamo:begin_tool_requests",), "plamo3"),
    (("<|START_ACTION|>", "<|START_TEXT|>"), "cohere_command4"),
    (("<|START_ACTION|>",), "cohere_command3"),
    (("<start_function_call>",), "functiongemma"),
    (('<|"|>', "<|tool_call>"), "gemma4"),
    (("<|tool_call_start|>",), "lfm2"),
    (("<|tools_prefix|>",), "apertus"),
    (("<|action_start|>", "<|plugin|>"), "internlm"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<tool_call>", "<arg_key>", "<tool_sep>"), "hy_v3"),
    (("<tool_call>", "<arg_key>"), "glm45"),
    (("<tool_call>", "<function="), "qwen3_coder"),
    (("<function name=", "<param name="), "minicpm5"),
    (("<|tool_call|>",), "granite"),
    (("<function_call>",), "granite-20b-fc"),
    (("<function_calls>",), "olmo3"),
    (("<|role_sep|>", "function call"), "gigachat3"),
    (("<tool_calls>", "<answer>"), "hunyuan_a13b"),
    (("<tool_calls>",), "jamba"),
    (("functools[",), "phi4_mini_json"),
    (("<|python_start|>",), "llama4_pythonic"),
    (("<response>", "<tool_call>"), "ernie45"),
    (("<tool_call>", "<|start_of_role|>"), "granite4"),
    (("<tool_call>",), "hermes"),
    (("<|python_tag|>",), "llama3_json"),
    (("<|start_header_id|>", '"parameters"'), "llama3_json"),
)
_REASONING: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<|channel|>", "analysis", "<|message|>"), "openai_gptoss"),
    (("<|open|>", "think", "<|sep|>"), "kimi_k3"),
    (("<|channel>", "thought"), "gemma4"),
    (("[THINK]",), "mistral"),
    (("<seed:think>",), "seed_oss"),
    (("<ifm|think",), "k2_horizon"),
    (("<|content_thinking|>",), "inkling"),
    (("plamo:begin_think",), "plamo3"),
    (("<|START_THINKING|>", "<|START_TEXT|>"), "cohere_command4"),
    (("<|START_THINKING|>",), "cohere_command3"),
    (("Here is my thought process:",), "granite"),
    (("｜DSML｜", "</think>"), "deepseek_v4"),
    (("</think>", "<｜Assistant｜>", "thinking"), "deepseek_v3"),
    (("</think>", "<｜Assistant｜>"), "deepseek_r1"),
    (("</think>", "[gMASK]"), "glm45"),
    (("</think>", "<|tool_calls_section_begin|>"), "kimi_k2"),
    (("</think>", "<minimax:tool_call>"), "minimax_m2"),
    (("</think>", "steptml"), "step3"),
    (("</think>", "<answer>"), "hunyuan_a13b"),
    (("</think>", "<response>"), "ernie45"),
    (("</think>", "<function_calls>"), "olmo3"),
    (("</think>", "<|im_start|>"), "qwen3"),
    (("</think>",), "deepseek_r1"),
)


def detect_format(chat_template: str) -> Detected:
    """The parsers' names for a model, by the markers its chat template writes."""
    return Detected(_first(_TOOLS, chat_template), _first(_REASONING, chat_template))


def _first(rows: tuple[tuple[tuple[str, ...], str], ...], text: str) -> str | None:
    return next((name for words, name in rows if all(word in text for word in words)), None)
