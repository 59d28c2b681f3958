"""Speculative decoding: what a sequence may say next is looked up in what it has said, and verified in one pass.

The border: token ids come in, guesses go out. A wrong guess costs time and nothing else; what is sampled, and from
which distribution, is decided by `model_step` exactly as without guesses.
"""

from tokenwire.engine.local.speculation.drafter import Drafter, DraftState

__all__ = ["DraftState", "Drafter"]
