"""From a model argument to a folder.

1. A GGUF file is converted once, whole or not at all, and the same file is never converted again.
2. The converted folder has the tokenizer, template and EOS of the model itself.
3. EOS set, defaults and context come from the folder and the options.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tokenwire.engine.local import LocalEngineOptions, prepare_model
from tokenwire.engine.local.facts import check_folder, read_facts
from tokenwire.errors import EngineUnavailableError


def write_folder(folder: Path, config: dict[str, object], **files: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"vocab_size": 10, "max_position_embeddings": 64} | config))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_the_tokenizers_eos_is_the_primary_one_and_the_generation_config_adds_others(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path / "m",
        {"eos_token_id": 1},
        generation_config={"eos_token_id": [5, 7]},
        tokenizer_config={"eos_token": {"content": "<end>"}},
        tokenizer={"added_tokens": [{"id": 7, "content": "<end>"}], "model": {"vocab": {}}},
    )
    assert read_facts(folder, LocalEngineOptions()).eos_token_ids == (7, 5)
    assert read_facts(folder, LocalEngineOptions(generation_config="vllm")).eos_token_ids == (7,)
    bare = write_folder(tmp_path / "bare", {"eos_token_id": 1})
    assert read_facts(bare, LocalEngineOptions()).eos_token_ids == (1,)


def test_default_sampling_comes_from_the_generation_config_and_its_override(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path / "m",
        {},
        generation_config={"temperature": 0.6, "top_p": 0.95, "max_new_tokens": 50, "bos_token_id": 1},
    )
    options = LocalEngineOptions(override_generation_config={"max_new_tokens": 20, "top_k": 5})
    defaults = read_facts(folder, options).default_sampling_params
    assert defaults == {"temperature": 0.6, "top_p": 0.95, "max_tokens": 20, "top_k": 5}
    assert read_facts(folder, LocalEngineOptions(generation_config="vllm")).default_sampling_params == {}


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ({"is_encoder_decoder": True}, {}, "has an encoder"),
        ({"layer_types": ["full_attention", "linear_attention"]}, {}, "linear_attention"),
        ({}, {"max_model_len": 65}, "context of 64 tokens"),
    ],
)
def test_a_model_that_cannot_run_is_refused_from_its_config(
    tmp_path: Path, config: dict[str, object], options: dict[str, int], message: str
) -> None:
    folder = write_folder(tmp_path / "m", config)
    with pytest.raises(EngineUnavailableError, match=message):
        check_folder(folder, LocalEngineOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["/no/such/place", "./nothing", "a/b/c", __file__])
def test_a_path_that_is_no_model_is_refused(model: str) -> None:
    with pytest.raises(EngineUnavailableError):
        prepare_model(model)


@pytest.mark.model
def test_the_converted_default_model_has_its_own_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = prepare_model()
    monkeypatch.setattr("tokenwire.engine.local.models._convert", None)
    assert prepare_model() == folder, "found again, not converted again"
    original_folder = Path(__file__).parents[1] / "data" / "tokenizers" / "smol"
    original = Tokenizer.from_file(str(original_folder / "tokenizer.json"))
    converted = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rnd = random.Random(0)
    alphabet = "abc XYZ019 \n\t.,!?'\"()[]{}<>|_-éßñ漢字かな한국😀🇩🇪\u0301\u200d<|im_start|>"
    for _ in range(300):
        text = "".join(rnd.choice(alphabet) for _ in range(rnd.randint(0, 80)))
        ids = original.encode(text).ids
        assert converted.encode(text).ids == ids
        assert converted.decode(ids, skip_special_tokens=False) == original.decode(ids, skip_special_tokens=False)
    facts = read_facts(folder, LocalEngineOptions())
    assert (facts.eos_token_ids, facts.vocab_size, facts.max_model_len) == ((2,), 49152, 8192)
    template = (original_folder / "chat_template.jinja").read_text()
    assert (folder / "chat_template.jinja").read_text() == template
