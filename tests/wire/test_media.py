"""Media of an expanded prompt.

1. Modalities agree in all maps, and so do the items of each.
2. Ranges lie inside the prompt, are not empty, and do not overlap, whatever their modality.
3. An embedding mask has one entry per placeholder token.
4. Metadata without tensors needs transfer params of an encoder.
"""

from __future__ import annotations

from typing import Any

import pytest

from tokenwire.errors import InvalidRequestError
from tokenwire.wire import codec
from tokenwire.wire.media import MultiModalFeatures

PROMPT_LEN = 6


def features(ranges: list[dict[str, Any]], hashes: int | None = None, **maps: Any) -> dict[str, Any]:
    names = [f"h{i}" for i in range(len(ranges) if hashes is None else hashes)]
    return {"mm_hashes": {"image": names}, "mm_placeholders": {"image": ranges}, **maps}


def span(offset: int, length: int, **more: Any) -> dict[str, Any]:
    return {"offset": offset, "length": length, **more}


def check(given: dict[str, Any], *, has_ec_transfer: bool = False) -> None:
    decoded, _ = codec.convert(MultiModalFeatures, given)
    decoded.check(PROMPT_LEN, has_ec_transfer=has_ec_transfer)


GOOD: list[dict[str, Any]] = [
    features([span(1, 4)], kwargs_data={"image": ["YjY0"]}),
    features([span(0, 3), span(3, 3)]),
    features([span(1, 2, is_embed=[True, False])]),
    features([span(1, 2)], kwargs_data={"image": [None]}, mm_metadata={"image": [None]}),
]
BAD: list[tuple[dict[str, Any], str]] = [
    (features([span(3, 4)]), "runs past the 6 token_ids"),
    (features([span(1, 3), span(2, 2)]), "overlaps another range"),
    (features([span(1, 1), span(2, 1)], hashes=1), "has 2 items, mm_hashes.image has 1"),
    (features([span(1, 0)]), "greater than 0"),
    (features([span(-1, 2)]), "greater than or equal to 0"),
    (features([span(1, 1)], kwargs_data={"image": []}), "has 0 items"),
    (features([span(1, 1)], kwargs_data={"audio": ["eA=="]}), "kwargs_data and mm_hashes must use the same modalities"),
    ({"mm_hashes": {"image": ["h"]}, "mm_placeholders": {}}, "mm_hashes and mm_placeholders must use the same"),
    (features([span(1, 2, is_embed=[True])]), "is_embed has 1 items"),
    (features([span(1, 1)], mm_metadata={"image": ["bQ=="]}), "needs non-empty ec_transfer_params"),
    (
        {
            "mm_hashes": {"image": ["a"], "audio": ["b"]},
            "mm_placeholders": {"image": [span(0, 3)], "audio": [span(2, 2)]},
        },
        "overlaps another range",
    ),
]


@pytest.mark.parametrize("given", GOOD)
def test_ranges_that_fit_pass(given: dict[str, Any]) -> None:
    check(given)


@pytest.mark.parametrize(("given", "words"), BAD)
def test_what_does_not_fit_is_a_400_that_says_where(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        check(given)


def test_metadata_alone_is_fine_where_an_encoder_sends_the_tensors() -> None:
    check(features([span(1, 1)], mm_metadata={"image": ["bQ=="]}), has_ec_transfer=True)
