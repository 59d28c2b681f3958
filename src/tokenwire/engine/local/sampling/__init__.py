"""From logits to token ids: adjustments, truncation, the draw, and the scores a caller asked for.

The border: tensors `[rows, vocab]` and one `SequenceSampler` a row come in, numpy arrays go out. Nothing here knows of
requests, of KV caches or of text.
"""

from tokenwire.engine.local.sampling.prompt import score_prompt, score_prompt_ids
from tokenwire.engine.local.sampling.random import derived_seed
from tokenwire.engine.local.sampling.repetition import has_repetition
from tokenwire.engine.local.sampling.state import SequenceSampler
from tokenwire.engine.local.sampling.step import LogprobsMode, SampleOutput, sample
from tokenwire.engine.local.sampling.thinking import ThinkingMarkers, last_occurrence
from tokenwire.engine.local.sampling.words import tokenize_bad_words

__all__ = [
    "LogprobsMode",
    "SampleOutput",
    "SequenceSampler",
    "ThinkingMarkers",
    "derived_seed",
    "has_repetition",
    "last_occurrence",
    "sample",
    "score_prompt",
    "score_prompt_ids",
    "tokenize_bad_words",
]
