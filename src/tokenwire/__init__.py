"""tokenwire serves language models by token ids: ids in, ids out, nothing re-tokenised on the way."""

__version__ = "0.1.0"
