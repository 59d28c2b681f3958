"""What 8-bit weights cost in quality: python bench/quantization_quality.py [MODEL]

A fixed text goes through the local engine's model in windows of 512 ids, once in float32 and once with
`--quantization int8`. Prints JSON: the share of positions whose most likely next id is the same, both perplexities, and
the mean divergence of the two distributions (nats). The text is this repository's own prose of one day; no model has
been trained on it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Literal

import torch
from tokenizers import Tokenizer

from tokenwire.engine.local.batch import Prefill, StepBatch
from tokenwire.engine.local.models import prepare_model
from tokenwire.engine.local.options import LocalEngineOptions
from tokenwire.engine.local.runner import ModelRunner

TEXT = Path(__file__).parent / "data" / "prose.txt"
WINDOW = 512


def window_batch(ids: torch.Tensor) -> StepBatch:
    """All logits of one prompt that stands alone."""
    count = len(ids)
    places = torch.arange(count)
    return StepBatch(
        token_ids=ids,
        positions=places,
        slots=places,
        num_decodes=0,
        decode_tables=torch.zeros((0, 0), dtype=torch.int32),
        decode_lens=torch.zeros(0, dtype=torch.int32),
        max_decode_len=0,
        prefills=[Prefill(0, count, 0, places)],
        logit_rows=places,
        sample_rows=[],
        score_rows=[],
    )


def log_probabilities(folder: Path, quantization: Literal["none", "int8"], windows: torch.Tensor) -> torch.Tensor:
    """[positions with a next id, vocab] of all windows."""
    options = LocalEngineOptions(quantization=quantization, num_kv_blocks=WINDOW // 16, max_model_len=WINDOW)
    runner = ModelRunner(folder, options, WINDOW)
    with torch.inference_mode():
        rows = [runner.logits(window_batch(ids))[:-1].log_softmax(-1) for ids in windows]
    return torch.cat(rows)


def compare(folder: Path, num_windows: int | None = None) -> dict[str, float]:
    """The figures, over all whole windows of the text or the first few."""
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT.read_text(), add_special_tokens=False).ids
    windows = torch.tensor(ids[: len(ids) // WINDOW * WINDOW]).view(-1, WINDOW)[:num_windows]
    following = windows[:, 1:].reshape(-1, 1)
    plain = log_probabilities(folder, "none", windows)
    quantized = log_probabilities(folder, "int8", windows)
    return {
        "positions": len(following),
        "top1_agreement": round((plain.argmax(-1) == quantized.argmax(-1)).float().mean().item(), 4),
        "perplexity_float32": round((-plain.gather(1, following).mean()).exp().item(), 3),
        "perplexity_int8": round((-quantized.gather(1, following).mean()).exp().item(), 3),
        "divergence": round((plain.exp() * (plain - quantized)).sum(-1).mean().item(), 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="folder, GGUF file or hub name; default: SmolLM2-135M-Instruct")
    print(json.dumps(compare(prepare_model(parser.parse_args().model))))


if __name__ == "__main__":
    main()
