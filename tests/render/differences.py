"""Where a record is not followed, and why. The tests hold our answer to exactly what stands here."""

from __future__ import annotations

from typing import Any

STATUS: dict[str, tuple[int, str]] = {
    "deepseek_v32/no_messages": (400, "an empty conversation is the caller's mistake; the recorded server crashed"),
    "gptoss/t_chat_nogen": (200, "/tokenize renders a chat as /render does; the recorded one looked for a template"),
}
"""Record -> our status, and why the recorded one is not right."""

SAMPLING: dict[str, tuple[dict[str, Any], str]] = {
    "gptoss/truncate": (
        {"max_tokens": 4019},
        "a Harmony prompt is not cut, so this is what is left; the recorded server counted a cut prompt",
    ),
    "mistral_tekken/tools_required": (
        {"structured_outputs": "a structural tag"},
        "this tokenizer's own call syntax, which the parser reads, in place of a bare JSON list",
    ),
}
"""Record -> the parameters that differ, as we give them, and why."""
