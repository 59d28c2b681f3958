"""The best k ids of each row without a sort of the vocabulary.

A row is cut into blocks. Every one of its k best values lies in one of the k blocks with the largest maxima (or ties
with a value that does), so a vectorised maximum and two small selections are enough.
"""

from __future__ import annotations

import torch

_BLOCK = 64


def top_values(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(values, ids) of the k largest per row of [R, V], largest first, equal values by rising id.

    Which ids stand for values that tie with the last one is deterministic but not fixed by the ids; all ids above the
    last value are there. NaN counts as the largest value.
    """
    width = values.shape[1]
    k = min(k, width)
    blocks = width // _BLOCK
    if k >= blocks // 2:
        found, ids = values.topk(k, dim=-1)
        return _ordered(found, ids)
    whole = blocks * _BLOCK
    cut = values[:, :whole].view(-1, blocks, _BLOCK) if values.is_contiguous() and whole == width else None
    if cut is None:
        cut = values[:, :whole].reshape(-1, blocks, _BLOCK)
    chosen = cut.amax(2).topk(k, dim=-1, sorted=False).indices  # [R, k]
    candidates = cut.gather(1, chosen.unsqueeze(2).expand(-1, -1, _BLOCK)).flatten(1)  # [R, k * _BLOCK]
    if whole < width:
        candidates = torch.cat([candidates, values[:, whole:]], dim=1)
    found, position = candidates.topk(k, dim=-1)
    in_block = position < k * _BLOCK
    block = chosen.gather(1, (position // _BLOCK).clamp_(max=k - 1))
    ids = torch.where(in_block, block * _BLOCK + position % _BLOCK, position - k * _BLOCK + whole)
    return _ordered(found, ids)


def _ordered(found: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    ids, by_id = ids.sort(dim=-1)
    found, order = found.gather(1, by_id).sort(dim=-1, descending=True, stable=True)
    return found, ids.gather(1, order)
