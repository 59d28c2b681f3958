"""A small PEFT adapter with random weights for any Llama-like model folder: enough to tell its answers from the
base model's.

As a script: `python -m tests.support.lora_adapter MODEL_FOLDER OUT [SEED]`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

TARGETS = ("q_proj", "v_proj")


def make_lora_adapter(model: Path, folder: Path, *, seed: int = 0, rank: int = 8) -> Path:
    """Write `adapter_config.json` and `adapter_model.safetensors` into `folder`, as PEFT would have saved them."""
    config = json.loads((model / "config.json").read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    widths = {"q_proj": heads * head_dim, "v_proj": config.get("num_key_value_heads", heads) * head_dim}
    random = np.random.default_rng(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for target in TARGETS:
            name = f"base_model.model.model.layers.{layer}.self_attn.{target}"
            tensors[f"{name}.lora_A.weight"] = random.normal(0, hidden**-0.5, (rank, hidden)).astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = random.normal(0, 0.5, (widths[target], rank)).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
    facts = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(TARGETS),
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(facts, indent=2))
    return folder


if __name__ == "__main__":
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    make_lora_adapter(Path(sys.argv[1]), Path(sys.argv[2]), seed=seed)
