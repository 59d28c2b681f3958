"""The training record of a dialogue: its exact ids, and for each sampled one its score and the weights that made it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokenwire.wire.generate import WeightVersionSpan


@dataclass(slots=True, frozen=True, eq=False)
class TrainingRecord:
    """T tokens: every prompt part and every sampled part of a dialogue, in order."""

    token_ids: NDArray[np.int32]  # [T]
    loss_mask: NDArray[np.bool_]  # [T], True where the model sampled the token
    logprobs: NDArray[np.float32]  # [T], natural log at sampling time; NaN where not sampled or not scored
    weight_versions: Sequence[WeightVersionSpan]
    """Positions start..end (half open) in `token_ids`; sampled tokens only, none where the engine gave no label."""
    messages: Sequence[dict[str, Any]]

    def __len__(self) -> int:
        return len(self.token_ids)

    def weight_version_index(self) -> tuple[NDArray[np.int32], list[str]]:
        """[T] index into the list of labels, -1 where a token has none."""
        labels = list(dict.fromkeys(span.version for span in self.weight_versions))
        index = np.full(len(self), -1, np.int32)
        for span in self.weight_versions:
            index[span.start : span.end] = labels.index(span.version)
        return index, labels

    def to_json(self) -> bytes:
        """One line without its line break. `logprobs` has null where the array has NaN."""
        return msgspec.json.encode(
            {
                "token_ids": self.token_ids.tolist(),
                "loss_mask": self.loss_mask.astype(int).tolist(),
                "logprobs": self.logprobs.tolist(),  # msgspec writes NaN as null
                "weight_versions": self.weight_versions,
                "messages": self.messages,
            }
        )

    @classmethod
    def from_json(cls, line: bytes) -> TrainingRecord:
        """The record of a `to_json` line."""
        raw = msgspec.json.decode(line, type=_Line)
        logprobs = [np.nan if x is None else x for x in raw.logprobs]
        return cls(
            np.array(raw.token_ids, np.int32),
            np.array(raw.loss_mask, np.bool_),
            np.array(logprobs, np.float32),
            raw.weight_versions,
            raw.messages,
        )

    def append_jsonl(self, file: IO[bytes] | str | PathLike[str]) -> None:
        """Write one line at the end of a file, given by name or opened for binary writing."""
        line = self.to_json() + b"\n"
        if isinstance(file, str | PathLike):
            with open(file, "ab") as lines:
                lines.write(line)
        else:
            file.write(line)

    def save_npz(self, path: str | PathLike[str]) -> None:
        """Arrays `token_ids`, `loss_mask`, `logprobs`, `weight_version` ([T] index) and `weight_version_labels`."""
        index, labels = self.weight_version_index()
        np.savez_compressed(
            path,
            token_ids=self.token_ids,
            loss_mask=self.loss_mask,
            logprobs=self.logprobs,
            weight_version=index,
            weight_version_labels=np.array(labels, dtype=np.str_),
        )


class _Line(msgspec.Struct):
    token_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float | None]
    weight_versions: list[WeightVersionSpan]
    messages: list[dict[str, Any]]
