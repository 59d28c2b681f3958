"""From a chat request to its parser, and which tokens end an answer.

1. The last reasoning marker of the prompt decides, however far back it stands; without one the format's rule holds.
2. The request's template settings win over the server's.
3. EOS ids come from the tokenizer and from the configuration files beside it; broken files name none.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.derender.sources import ByteTokens
from tokenwire.derender.chat_parser import FIRST_WINDOW, ChatFacts, ParserSetup, prompt_reasoning, template_kwargs
from tokenwire.derender.parser import find_format
from tokenwire.service.end_tokens import eos_token_ids

QWEN = ParserSetup(format=find_format("hermes", "qwen3"))
SOURCE = ByteTokens(["<think>", "</think>", "word "])


@pytest.mark.parametrize("distance", [0, 1, FIRST_WINDOW - 1, FIRST_WINDOW, 5 * FIRST_WINDOW])
@pytest.mark.parametrize(("marker", "state"), [(0, "open"), (1, "closed")])
def test_the_last_marker_decides_however_far_back(distance: int, marker: int, state: str) -> None:
    prompt = [2, 1 - marker, 2, marker, *[2] * distance]
    assert prompt_reasoning(SOURCE, QWEN, ChatFacts(), prompt) == state


def test_a_prompt_without_markers_leaves_it_to_the_format() -> None:
    assert prompt_reasoning(SOURCE, QWEN, ChatFacts(), [2] * 2000) == "undecided"
    assert prompt_reasoning(SOURCE, QWEN, ChatFacts(), []) == "undecided"


def test_the_request_s_template_settings_win() -> None:
    setup = ParserSetup(format=QWEN.format, default_chat_template_kwargs={"enable_thinking": False, "a": 1})
    assert template_kwargs(setup, ChatFacts(chat_template_kwargs={"enable_thinking": True})) == {
        "enable_thinking": True,
        "a": 1,
    }
    assert prompt_reasoning(SOURCE, setup, ChatFacts(), [2, 0]) == "closed"


def test_eos_ids_are_collected_from_the_files_beside_the_tokenizer(tmp_path: Path) -> None:
    assert eos_token_ids(tmp_path, 2) == {2}
    assert eos_token_ids(tmp_path, None) == frozenset()
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 8, true, "x"]}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 9}')
    assert eos_token_ids(tmp_path, 2) == {2, 7, 8, 9}
    (tmp_path / "generation_config.json").write_text("{")
    (tmp_path / "config.json").write_text("[]")
    assert eos_token_ids(tmp_path, 2) == {2}
