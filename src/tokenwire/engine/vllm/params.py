"""Our sampling parameters as vLLM's own object: every field by its name, text left to us, scores flat."""

from __future__ import annotations

from typing import Any

import msgspec

from tokenwire.engine.base import EngineRequest
from tokenwire.engine.vllm.support import fields_of
from tokenwire.errors import UnsupportedFeatureError
from tokenwire.wire.sampling import SamplingParams, StructuredOutputs

_OURS = frozenset(
    {
        # Made by the service from ids, so vLLM is not told.
        *("stop", "include_stop_str_in_output", "detokenize", "output_text_buffer_length"),
        # Set below, whatever the caller sent.
        *("output_kind", "flat_logprobs", "skip_clone", "n", "seed"),
    }
)
_DEFAULTS = SamplingParams()


class ParamsMaker:
    """Builds vLLM's SamplingParams; knows which fields this vLLM has."""

    def __init__(self) -> None:
        from vllm import sampling_params as module

        self._module: Any = module
        self._known = fields_of(module.SamplingParams)

    @property
    def cls(self) -> Any:
        return self._module.SamplingParams

    def make(self, request: EngineRequest, index: int) -> Any:
        """For sequence `index` of a request, as one request of its own; seeds follow each other as vLLM's do.

        Raises `UnsupportedFeatureError` for a field that this vLLM lacks, and what vLLM raises for values.
        """
        sampling = request.sampling
        values = {
            field.name: value
            for field in msgspec.structs.fields(SamplingParams)
            if field.name not in _OURS and (value := getattr(sampling, field.name)) != getattr(_DEFAULTS, field.name)
        }
        if index:  # the prompt is scored once
            for name in ("prompt_logprobs", "prompt_logprob_token_ids", "prompt_logprob_start"):
                values.pop(name, None)
        self._translate(values)
        extra = dict(values.get("extra_args") or {})
        for name in ("kv_transfer_params", "ec_transfer_params"):
            params = getattr(request, name)
            if params is not None:
                extra[name] = dict(params)
        if extra:
            values["extra_args"] = extra
        if sampling.seed is not None:
            values["seed"] = sampling.seed + index
        kind = self._module.RequestOutputKind
        values |= {"detokenize": False, "output_kind": kind.DELTA if request.stream else kind.FINAL_ONLY}
        values |= {name: True for name in ("flat_logprobs", "skip_clone") if name in self._known}
        for name, value in values.items():
            if name not in self._known:
                raise UnsupportedFeatureError(
                    f"sampling_params.{name}", value=value, where="this vLLM", way_out="Upgrade vLLM or leave it out."
                )
        return self._module.SamplingParams(**values)

    def _translate(self, values: dict[str, Any]) -> None:
        """Fields whose values are objects of vLLM's."""
        structured = values.get("structured_outputs")
        if structured is not None:
            self._structured(values, structured)
        rule = values.get("repetition_detection")
        if rule is not None and hasattr(self._module, "RepetitionDetectionParams"):
            values["repetition_detection"] = self._module.RepetitionDetectionParams(**msgspec.structs.asdict(rule))

    def _structured(self, values: dict[str, Any], structured: StructuredOutputs) -> None:
        """`structured_outputs`, which was called `guided_decoding` before."""
        options = {k: v for k, v in msgspec.structs.asdict(structured).items() if v is not None and v is not False}
        tag = options.get("structural_tag")
        if isinstance(tag, dict):
            options["structural_tag"] = msgspec.json.encode(tag).decode()
        if "structured_outputs" in self._known:
            values["structured_outputs"] = self._module.StructuredOutputsParams(**options)
        else:
            del values["structured_outputs"]
            values["guided_decoding"] = self._module.GuidedDecodingParams(**options)
