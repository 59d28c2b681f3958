"""`quantization="int8"`: (1) it answers nearly as float32 does, (2) whatever is in the batch beside a request, (3) and
it is refused by name where it cannot work. (4) Float32 is exact with and without short codes of the weights."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.engine.harness import Harness, Reference
from tests.engine.tiny_models import CONFIGS, VOCAB, make_model
from tokenwire.engine.local.models import prepare_model
from tokenwire.engine.local.tiles import HAS_VNNI
from tokenwire.errors import EngineUnavailableError

FUSED = [name for name in CONFIGS if name not in ("gemma2-capped", "gpt2")]
BENCH = Path(__file__).parents[2] / "bench" / "quantization_quality.py"


def prompts(count: int) -> list[list[int]]:
    rnd = random.Random(4)
    return [[rnd.randrange(4, VOCAB) for _ in range(rnd.randint(1, 50))] for _ in range(count)]


@pytest.mark.parametrize("name", FUSED)
def test_scores_are_near_those_of_float32(
    name: str, folders: dict[str, Path], references: dict[str, Reference]
) -> None:
    harness = Harness(folders[name], quantization="int8")
    assert harness.core.runner.weight_codes == ["i8" if HAS_VNNI else "s8"]
    cases = prompts(6)
    handles = [harness.add(p, max_tokens=4, logprobs=0, trace_decode_token_ids=[5, 6, 7, 8]) for p in cases]
    harness.run()
    off = []
    for handle, prompt in zip(handles, cases, strict=True):
        scores = harness.output(handle).logprobs
        assert scores is not None
        table = references[name].logprobs([*prompt, 5, 6, 7, 8])[len(prompt) - 1 : -1]
        off.append(torch.from_numpy(scores.logprobs[:, 0].copy()) - table[range(4), [5, 6, 7, 8]])
    # Random weights of this size amplify every rounding; log-probabilities range over 20 and more.
    assert torch.cat(off).abs().mean() < 0.5


def test_an_answer_does_not_depend_on_its_neighbours(folders: dict[str, Path]) -> None:
    cases = prompts(6)
    together = Harness(folders["llama"], quantization="int8")
    handles = [together.add(p, max_tokens=10, ignore_eos=True) for p in cases]
    together.run()
    for handle, prompt in zip(handles, cases, strict=True):
        alone = Harness(folders["llama"], quantization="int8")
        single = alone.add(prompt, max_tokens=10, ignore_eos=True)
        alone.run()
        assert alone.ids(single) == together.ids(handle)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gpt2", {}, "quantization='int8' works for LlamaForCausalLM.*this is GPT2LMHeadModel"),
        ("gemma2-capped", {}, "Gemma2ForCausalLM with float32 on cpu"),
        ("llama", {"dtype": "bfloat16"}, "LlamaForCausalLM with bfloat16 on cpu"),
        ("llama", {"fused": False}, "fused=False turns off"),
    ],
)
def test_it_is_refused_by_name_where_it_cannot_work(
    name: str, options: dict[str, object], message: str, folders: dict[str, Path]
) -> None:
    with pytest.raises(EngineUnavailableError, match=message):
        Harness(folders[name], quantization="int8", **options)


def test_weights_that_bfloat16_holds_are_kept_so_and_answer_the_same(tmp_path: Path) -> None:
    folder = make_model("llama", tmp_path / "made")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(folder)).to(torch.bfloat16)
    model.save_pretrained(str(tmp_path / "short"))
    harness = Harness(tmp_path / "short")
    assert harness.core.runner.weight_codes == ["bf16"]
    cases = prompts(5)
    handles = [harness.add(p, max_tokens=12) for p in cases]
    harness.run()
    reference = Reference(tmp_path / "short")
    assert [harness.ids(h) for h in handles] == [reference.greedy(p, 12) for p in cases]


@pytest.fixture(scope="module")
def quality() -> ModuleType:
    spec = importlib.util.spec_from_file_location("quantization_quality", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.model
def test_the_default_model_keeps_its_choices_and_its_perplexity(quality: ModuleType) -> None:
    figures = quality.compare(prepare_model(), num_windows=2)
    assert figures["top1_agreement"] > 0.92
    assert figures["divergence"] < 0.02
    assert abs(figures["perplexity_int8"] / figures["perplexity_float32"] - 1) < 0.02
