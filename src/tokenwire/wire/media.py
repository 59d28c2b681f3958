"""Media that travel with a token request: where each item stands in the prompt, and its processed tensors."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tokenwire.errors import InvalidRequestError


class PlaceholderRange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prompt tokens offset..offset+length (half open) stand for one media item."""

    offset: Annotated[int, Meta(ge=0)]
    length: Annotated[int, Meta(gt=0)]
    is_embed: list[bool] | None = None
    """Which of the `length` tokens carry an embedding; None: all."""


class MultiModalFeatures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Media of an already expanded prompt, by modality ("image", "audio", "video"), in prompt order."""

    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[PlaceholderRange]]
    kwargs_data: dict[str, list[bytes | None]] | None = None
    """One encoded tensor bundle per item, base64 in JSON; null: resolve from the server's cache by hash."""
    mm_metadata: dict[str, list[bytes | None]] | None = None

    def check(self, prompt_len: int, *, has_ec_transfer: bool) -> None:
        """Raise `InvalidRequestError` unless maps agree, ranges are disjoint and inside the prompt."""
        modalities = set(self.mm_hashes)
        if modalities != set(self.mm_placeholders):
            raise InvalidRequestError("mm_hashes and mm_placeholders must use the same modalities", param="features")
        for name in ("kwargs_data", "mm_metadata"):
            present = getattr(self, name)
            if present is not None and set(present) != modalities:
                raise InvalidRequestError(
                    f"{name} and mm_hashes must use the same modalities", param=f"features.{name}"
                )
        for modality in modalities:
            self._check_modality(modality, has_ec_transfer=has_ec_transfer)
        self._check_ranges(prompt_len)

    def _check_modality(self, modality: str, *, has_ec_transfer: bool) -> None:
        expected = len(self.mm_hashes[modality])
        for name in ("mm_placeholders", "kwargs_data", "mm_metadata"):
            present = getattr(self, name)
            if present is not None and len(present[modality]) != expected:
                raise InvalidRequestError(
                    f"features.{name}.{modality} has {len(present[modality])} items, "
                    f"mm_hashes.{modality} has {expected}",
                    param=f"features.{name}.{modality}",
                )
        for index, span in enumerate(self.mm_placeholders[modality]):
            if span.is_embed is not None and len(span.is_embed) != span.length:
                raise InvalidRequestError(
                    f"features.mm_placeholders.{modality}[{index}].is_embed has {len(span.is_embed)} items, its length "
                    f"is {span.length}",
                    param=f"features.mm_placeholders.{modality}",
                )
        if self.mm_metadata is None or has_ec_transfer:
            return
        data = (self.kwargs_data or {}).get(modality) or [None] * expected
        for index, (metadata, tensors) in enumerate(zip(self.mm_metadata[modality], data, strict=True)):
            if metadata is not None and tensors is None:
                raise InvalidRequestError(
                    f"features.mm_metadata.{modality}[{index}] has metadata without kwargs_data; that needs non-empty "
                    "ec_transfer_params",
                    param=f"features.mm_metadata.{modality}",
                )

    def _check_ranges(self, prompt_len: int) -> None:
        spans = sorted(
            (r.offset, r.offset + r.length, modality) for modality, rs in self.mm_placeholders.items() for r in rs
        )
        end_before = 0
        for start, end, modality in spans:
            where = f"features.mm_placeholders.{modality}"
            if end > prompt_len:
                raise InvalidRequestError(
                    f"{where}: the range offset={start}, length={end - start} runs past the {prompt_len} token_ids",
                    param=where,
                )
            if start < end_before:
                raise InvalidRequestError(f"{where}: the range at offset={start} overlaps another range", param=where)
            end_before = end
