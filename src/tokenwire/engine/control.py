"""Control messages: what an operator or a trainer may tell an engine, beside requests.

They travel as they are between processes, so each is a tagged struct; `Engine.control` takes them.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Control(msgspec.Struct, frozen=True, kw_only=True, tag_field="control"):
    """Base of control messages. An engine lists the tags it obeys in `Capabilities.controls`."""


class Pause(Control, frozen=True, kw_only=True, tag="pause"):
    """Stop stepping. abort: end running requests; wait: let them finish; keep: freeze them."""

    mode: Literal["abort", "wait", "keep"] = "abort"
    clear_cache: bool = True


class Resume(Control, frozen=True, kw_only=True, tag="resume"):
    """Go on after a pause."""


class ResetPrefixCache(Control, frozen=True, kw_only=True, tag="reset_prefix_cache"):
    reset_running_requests: bool = False
    reset_external: bool = False


class ResetMediaCache(Control, frozen=True, kw_only=True, tag="reset_mm_cache"):
    """Forget processed media."""


class ResetEncoderCache(Control, frozen=True, kw_only=True, tag="reset_encoder_cache"):
    """Forget encoder outputs."""


class Sleep(Control, frozen=True, kw_only=True, tag="sleep"):
    """Pause, and from level 1 on give memory back. 0: none; 1: the weights go to the CPU; 2: they are dropped."""

    level: int = 1
    mode: Literal["abort", "wait", "keep"] = "abort"


class WakeUp(Control, frozen=True, kw_only=True, tag="wake_up"):
    """Take memory back, that of `tags` only where given; fact `fully_awake`."""

    tags: list[str] | None = None


class ReleaseKvCache(Control, frozen=True, kw_only=True, tag="release_kv_cache_memory"):
    """Give the cache's memory back while paused; `WakeUp` takes it again."""


class IsSleeping(Control, frozen=True, kw_only=True, tag="is_sleeping"):
    """Fact `is_sleeping`."""


class LoadAdapter(Control, frozen=True, kw_only=True, tag="load_adapter"):
    """Load an adapter under a name that requests may use; with `load_inplace` it replaces the one of that name."""

    name: str
    path: str
    load_inplace: bool = False
    is_3d_lora_weight: bool = False
    """The experts' weights are stored fused, three-dimensional."""


class UnloadAdapter(Control, frozen=True, kw_only=True, tag="unload_adapter"):
    name: str


class WeightTransfer(Control, frozen=True, kw_only=True, tag="weight_transfer"):
    """One step of the weight-update protocol; `action` is the route's name, `info` its body."""

    action: str
    info: dict[str, Any] = {}


class CollectiveRpc(Control, frozen=True, kw_only=True, tag="collective_rpc"):
    method: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    timeout_s: float | None = None


class Profile(Control, frozen=True, kw_only=True, tag="profile"):
    """Start or stop the engine's profiler; `options` narrow one session."""

    action: Literal["start", "stop"]
    options: dict[str, Any] = {}


class Describe(Control, frozen=True, kw_only=True, tag="describe"):
    """Fact `config`: the engine's own configuration, as text or as plain data."""

    format: Literal["text", "json"] = "text"


class KvEventSources(Control, frozen=True, kw_only=True, tag="kv_event_sources"):
    """Fact `sources`: data-parallel rank -> where its KV cache events can be had."""
