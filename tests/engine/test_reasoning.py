"""Reasoning markers, from texts in the options to what sequences may sample.

1. Markers become token ids by the model's tokenizer; without tokenizer or texts there are none, and no budget either.
2. A grammar holds from the first token on when reasoning has ended: because the request says so, or because the
   last marker of its prompt does; else from the end marker on.
3. A thinking budget forces the end marker.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from tests.engine.harness import Harness
from tests.engine.test_scheduler import new_request
from tokenwire.commands.engines import local_options
from tokenwire.engine.local.options import LocalEngineOptions
from tokenwire.engine.local.reasoning import Reasoning
from tokenwire.engine.local.sampling import ThinkingMarkers
from tokenwire.settings import ChatSettings, ModelSettings, Settings

START, END = 40, 41


@pytest.fixture(scope="module")
def folder(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("reasoning") / "model"
    shutil.copytree(folders["llama"], target)
    words = {f"w{i}": i for i in range(97) if i not in (START, END)}
    tokenizer = Tokenizer(WordLevel({**words, "<think>": START, "</think>": END}, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(target / "tokenizer.json"))
    return target


def test_texts_become_ids_by_the_tokenizer(folder: Path, folders: dict[str, Path]) -> None:
    both = LocalEngineOptions(reasoning_start="<think>", reasoning_end="</think>")
    assert Reasoning.read(folder, both) == Reasoning((START,), (END,))
    assert Reasoning.read(folder, both).markers == ThinkingMarkers((START,), (END,), (END,))
    words = Reasoning.read(folder, LocalEngineOptions(reasoning_end="w5 w6"))
    assert (words, words.markers) == (Reasoning((), (5, 6)), None)
    assert Reasoning.read(folders["llama"], both) == Reasoning()
    assert Reasoning.read(folder, LocalEngineOptions()) == Reasoning()


@pytest.mark.parametrize(
    ("prompt", "said", "holds_at_once"),
    [
        ([5], True, True),
        ([START, END], False, False),
        ([START, 5, END, 6], None, True),
        ([START, END, START, 5], None, False),
        ([END], None, True),
        ([5], None, False),
    ],
)
def test_a_grammar_holds_once_reasoning_has_ended(prompt: list[int], said: bool | None, holds_at_once: bool) -> None:
    request = new_request(prompt)
    request.reasoning_ended = said
    assert Reasoning((START,), (END,)).end_to_come(request) == (() if holds_at_once else (END,))
    assert Reasoning().end_to_come(request) == ()


@pytest.mark.parametrize("budget", [0, 3])
def test_a_budget_ends_thinking(folder: Path, budget: int) -> None:
    harness = Harness(folder, reasoning_start="<think>", reasoning_end="</think>")
    assert harness.core._info.capabilities.thinking_token_budget
    free = harness.add([5, 6, START], max_tokens=8, ignore_eos=True)
    bound = harness.add([5, 6, START], max_tokens=8, ignore_eos=True, thinking_token_budget=budget)
    harness.run()
    assert END not in harness.ids(free)
    assert harness.ids(bound)[: budget + 1] == [*harness.ids(free)[:budget], END]
    assert END not in harness.ids(bound)[budget + 1 :]


def test_without_markers_no_budget_is_declared(folder: Path) -> None:
    assert not Harness(folder).core._info.capabilities.thinking_token_budget


def test_the_parser_that_the_server_reads_answers_with_tells_the_markers(folder: Path) -> None:
    def options(parser: str | None) -> LocalEngineOptions:
        settings = Settings(model=ModelSettings(model=str(folder)), chat=ChatSettings(reasoning_parser=parser))
        return local_options(settings)

    found = {
        p: (options(p).reasoning_start, options(p).reasoning_end) for p in (None, "qwen3", "mistral", "openai_gptoss")
    }
    assert found == {
        None: (None, None),
        "qwen3": ("<think>", "</think>"),
        "mistral": ("[THINK]", "[/THINK]"),
        "openai_gptoss": (None, None),
    }
