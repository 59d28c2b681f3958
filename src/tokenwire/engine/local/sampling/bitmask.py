"""Grammar masks: one bit per id, applied to all constrained rows in one go."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tokenwire.engine.local.sampling.state import TokenConstraint


def apply_constraints(logits: torch.Tensor, constrained: Sequence[tuple[int, TokenConstraint]]) -> None:
    """Set to -inf, in place, what the constraints forbid. Ids past the end of a mask are forbidden."""
    if not constrained:
        return
    width = logits.shape[1]
    words = np.zeros((len(constrained), (width + 31) // 32), dtype=np.int32)
    active = [j for j, (_, constraint) in enumerate(constrained) if constraint.fill(words[j])]
    if not active:
        return
    rows = torch.tensor([constrained[j][0] for j in active], device=logits.device)
    bits = np.unpackbits(words[active].view(np.uint8), axis=1, count=width, bitorder="little")
    forbidden = torch.from_numpy(bits == 0).to(logits.device)
    logits[rows] = logits[rows].masked_fill_(forbidden, float("-inf"))
