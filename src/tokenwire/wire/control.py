"""What travels on control routes: weight updates, sleep, adapters, calls to workers. Names are vLLM's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

Name = Annotated[str, msgspec.Meta(min_length=1)]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """The plain answer of a step that has no facts to give."""

    message: str


# --- weight updates


class InitWeightTransfer(msgspec.Struct, frozen=True, kw_only=True):
    init_info: dict[str, Any]
    """The transfer backend's own: for NCCL `master_address`, `master_port`, `rank_offset`, `world_size`."""


class UpdateWeights(msgspec.Struct, frozen=True, kw_only=True):
    update_info: dict[str, Any] | list[dict[str, Any]]
    """The transfer backend's own: for NCCL `names`, `dtype_names`, `shapes`. A list has one item per worker."""


class FinishWeightUpdate(msgspec.Struct, frozen=True, kw_only=True):
    weight_version: str | None = None
    """Label of the new weights, from now on in `weight_versions`. Null leaves the old label."""


class NewWeightVersion(msgspec.Struct, frozen=True, kw_only=True):
    new_version: str


class WeightVersionSet(msgspec.Struct, frozen=True, kw_only=True):
    success: bool
    new_version: str


class WeightInfo(msgspec.Struct, frozen=True, kw_only=True):
    weight_version: str


class CheckWeights(msgspec.Struct, frozen=True, kw_only=True):
    action: Literal["checksum", "reset", "compare"]
    """`reset` makes every weight zero, to see that an update brings all of them back."""
    baseline: dict[str, str] | None = None
    """Checksums to `compare` with."""


class WeightCheck(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`status` after a reset, `checksums` by parameter, or whether they `match` and which do not."""

    status: str | msgspec.UnsetType = msgspec.UNSET
    checksums: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    match: bool | msgspec.UnsetType = msgspec.UNSET
    mismatches: list[str] | msgspec.UnsetType = msgspec.UNSET


class WorldSize(msgspec.Struct, frozen=True, kw_only=True):
    world_size: int


# --- sleep


class Sleeping(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    level: int


class Awake(msgspec.Struct, frozen=True, kw_only=True):
    """`status` is "sleeping" while something has not been woken."""

    status: Literal["awake", "sleeping"]
    tags: list[str] | None


class IsAsleep(msgspec.Struct, frozen=True, kw_only=True):
    is_sleeping: bool


# --- adapters, workers


class LoadLoraAdapter(msgspec.Struct, frozen=True, kw_only=True):
    lora_name: Name
    lora_path: Name
    """A folder on the server, or a hub name."""
    load_inplace: bool = False
    """Replace the adapter of that name, if there is one."""
    is_3d_lora_weight: bool = False


class UnloadLoraAdapter(msgspec.Struct, frozen=True, kw_only=True):
    lora_name: Name
    lora_int_id: int | None = None
    """vLLM's number of the adapter; not needed."""


class CallWorkers(msgspec.Struct, frozen=True, kw_only=True):
    method: Name
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    timeout: float | None = None
    """Seconds."""


class WorkerResults(msgspec.Struct, frozen=True, kw_only=True):
    results: list[Any]
    """One per worker; what JSON cannot hold is written as text."""


class StartProfile(msgspec.Struct, frozen=True, kw_only=True):
    profile_prefix: str | None = None
    delay_iterations: int | None = None
    max_iterations: int | None = None
