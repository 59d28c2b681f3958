"""GGUF file to a folder of safetensors, tokenizer and configs, run as its own process: `python -m ... SOURCE TARGET`.

Weights are dequantised to float32. The folder appears at once and whole: it is written beside its place and renamed,
so two converters at the same time do no harm. Progress goes to stdout as lines `stage fraction`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig


def convert(source: Path, target: Path) -> None:
    """Write `target`, complete, or raise and leave nothing behind. An existing `target` is kept."""
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        _write(source, work)
        os.chmod(work, 0o755)
        with contextlib.suppress(OSError):  # somebody else was first
            work.rename(target)
        if not (target / "config.json").exists():
            raise RuntimeError(f"{target} could not be written")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write(source: Path, work: Path) -> None:
    _say("reading weights", 0.0)
    facts = _metadata(source)
    model = AutoModelForCausalLM.from_pretrained(
        str(source.parent), gguf_file=source.name, dtype=torch.float32, low_cpu_mem_usage=True
    )
    _say("writing weights", 0.6)
    eos = facts.get("tokenizer.ggml.eos_token_id")
    model.generation_config = GenerationConfig(
        bos_token_id=facts.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=eos,
        pad_token_id=facts.get("tokenizer.ggml.padding_token_id", eos),
    )
    model.config.eos_token_id = eos
    model.config.bos_token_id = facts.get("tokenizer.ggml.bos_token_id")
    _forget_quantization(model)
    model.save_pretrained(str(work))
    _say("writing the tokenizer", 0.9)
    _write_tokenizer(source, facts, work)
    _say("done", 1.0)


def _forget_quantization(model: Any) -> None:
    """The weights are plain float32 now; the loader's mark of their origin would forbid saving them."""
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def _metadata(source: Path) -> dict[str, Any]:
    """The file's small facts; vocabulary arrays are left to the tokenizer converter."""
    fields = GGUFReader(str(source)).fields
    wanted = ("tokenizer.ggml.", "tokenizer.chat_template", "general.")
    arrays = ("tokens", "merges", "scores", "token_type")
    return {
        name: field.contents()
        for name, field in fields.items()
        if name.startswith(wanted) and not name.endswith(arrays)
    }


def _write_tokenizer(source: Path, facts: dict[str, Any], work: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    tokenizer.save_pretrained(str(work))
    config_file = work / "tokenizer_config.json"
    config = json.loads(config_file.read_text())
    for kind, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        token_id = facts.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None:
            config[f"{kind}_token"] = tokenizer.convert_ids_to_tokens(int(token_id))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config["clean_up_tokenization_spaces"] = False
    config_file.write_text(json.dumps(config, indent=1, ensure_ascii=False))
    template = facts.get("tokenizer.chat_template")
    if template is not None:
        (work / "chat_template.jinja").write_text(template)


def _say(stage: str, fraction: float) -> None:
    sys.stdout.write(f"{stage} {fraction:.2f}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
