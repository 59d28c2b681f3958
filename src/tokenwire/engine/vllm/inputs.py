"""Prompts as vLLM takes them: ids alone, ids with processed media, or ids with media to fetch and process."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import msgspec

from tokenwire.engine.base import EngineRequest
from tokenwire.errors import InvalidRequestError, UnsupportedFeatureError
from tokenwire.wire.media import MultiModalFeatures

_PART_PARSERS = {"image_url": "parse_image", "audio_url": "parse_audio", "video_url": "parse_video"}


async def make_prompt(engine: Any, request: EngineRequest) -> Any:
    """The prompt of a request. Raises what vLLM raises for media it cannot fetch or decode."""
    if request.content_parts:
        return await _with_parts(engine, request)
    if request.features is not None and any(request.features.mm_hashes.values()):
        return _with_features(request, request.features)
    prompt: dict[str, Any] = {"prompt_token_ids": request.prompt_token_ids}
    if _takes_rendered_inputs():
        prompt["type"] = "token"
    if request.cache_salt is not None:
        prompt["cache_salt"] = request.cache_salt
    return prompt


def _takes_rendered_inputs() -> bool:
    """Newer versions take an input that is marked as rendered without a look at it; older ones know no mark."""
    from vllm import inputs

    return hasattr(inputs, "tokens_input")


def _with_features(request: EngineRequest, features: MultiModalFeatures) -> Any:
    """Items travel as vLLM's own encoding of tensors; what is not sent is taken from its cache by hash."""
    try:
        from vllm.entrypoints.scale_out.token_in_token_out.mm_features import mm_kwargs_from_features
        from vllm.inputs import mm_input
        from vllm.multimodal.inputs import MultiModalKwargsItems, PlaceholderRange
    except ImportError as exc:
        raise UnsupportedFeatureError(
            "features", value=sorted(features.mm_hashes), where="this vLLM", way_out="Upgrade vLLM."
        ) from exc
    try:
        items = mm_kwargs_from_features(_as_vllm_has_it(features))
    except Exception as exc:
        raise InvalidRequestError(f"features hold an item that cannot be decoded: {exc}", param="features") from exc
    placeholders = {
        modality: [PlaceholderRange(offset=r.offset, length=r.length, **_mask(r.is_embed)) for r in ranges]
        for modality, ranges in features.mm_placeholders.items()
    }
    return mm_input(
        prompt_token_ids=request.prompt_token_ids,
        mm_kwargs=MultiModalKwargsItems(items),
        mm_hashes=features.mm_hashes,
        mm_placeholders=placeholders,
        cache_salt=request.cache_salt,
    )


def _as_vllm_has_it(features: MultiModalFeatures) -> Any:
    """vLLM reads items from base64 text."""
    texts = {
        name: None
        if items is None
        else {m: [None if i is None else b64encode(i).decode() for i in items[m]] for m in items}
        for name, items in (("kwargs_data", features.kwargs_data), ("mm_metadata", features.mm_metadata))
    }
    return msgspec.structs.replace(features, **texts)


def _mask(is_embed: list[bool] | None) -> dict[str, Any]:
    if is_embed is None:
        return {}
    import torch

    return {"is_embed": torch.tensor(is_embed, dtype=torch.bool)}


async def _with_parts(engine: Any, request: EngineRequest) -> Any:
    """vLLM fetches the media and expands their placeholders."""
    try:
        from vllm.renderers.chat_utils import AsyncMultiModalItemTracker
    except ImportError:
        from vllm.entrypoints.chat_utils import AsyncMultiModalItemTracker
    tracker = AsyncMultiModalItemTracker(engine.model_config)
    parser = tracker.create_parser()
    for part in request.content_parts or ():
        parse = _PART_PARSERS.get(str(part.get("type", "")))
        if parse is not None:
            getattr(parser, parse)(part.get("url"), part.get("uuid"))
    data, uuids = await tracker.resolve_items()
    prompt: dict[str, Any] = {"prompt_token_ids": request.prompt_token_ids}
    if request.cache_salt is not None:
        prompt["cache_salt"] = request.cache_salt
    if data:
        prompt["multi_modal_data"] = data
    if uuids:
        prompt["multi_modal_uuids"] = uuids
    return prompt
