"""Control messages as calls of AsyncLLM. Arguments that an older vLLM does not take are left out at their defaults."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from tokenwire.engine.base import (
    CollectiveRpc,
    Control,
    LoadAdapter,
    Pause,
    ResetPrefixCache,
    Resume,
    Sleep,
    UnloadAdapter,
    WakeUp,
    WeightTransfer,
)
from tokenwire.engine.vllm.errors import translated
from tokenwire.engine.vllm.support import WEIGHT_ACTIONS, accepts
from tokenwire.errors import InvalidRequestError, ModelNotFoundError, UnsupportedFeatureError


class Controls:
    """Carries out control messages, and keeps the adapters that were loaded by name."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._adapters: dict[str, Any] = {}
        self._serial = itertools.count(1)
        self.weight_version: str | None = None
        """The committed label, where this vLLM has labels. vLLM tells spans with a sequence's last output only; this
        names the weights of a sequence that is ended here, at a stop string."""

    async def learn_weight_version(self) -> None:
        if hasattr(self._engine, "get_weight_version"):
            self.weight_version = await self._engine.get_weight_version()

    def adapter(self, name: str) -> Any:
        """vLLM's request for a loaded adapter. Raises `ModelNotFoundError`."""
        if name not in self._adapters:
            raise ModelNotFoundError(name, list(self._adapters))
        return self._adapters[name]

    async def carry_out(self, message: Control) -> dict[str, Any]:
        """Facts for the reply. Raises our errors only."""
        with translated():
            return await self._carry_out(message)

    async def _carry_out(self, message: Control) -> dict[str, Any]:
        engine = self._engine
        match message:
            case Pause(mode=mode, clear_cache=clear):
                await engine.pause_generation(**_pause_arguments(engine.pause_generation, mode, clear))
            case Resume():
                await engine.resume_generation()
            case ResetPrefixCache(reset_running_requests=running, reset_external=external):
                wanted = {"reset_running_requests": running, "reset_connector": external}
                done = await engine.reset_prefix_cache(**_known(engine.reset_prefix_cache, wanted))
                return {"success": done is not False}
            case Sleep(level=level, mode=mode):
                defaults = {"level": level} | ({"mode": mode} if mode != "abort" else {})
                await engine.sleep(**_known(engine.sleep, defaults))
            case WakeUp(tags=tags):
                await engine.wake_up(tags)
            case CollectiveRpc(method=method, args=args, kwargs=kwargs, timeout_s=timeout):
                results = await engine.collective_rpc(method, timeout=timeout, args=tuple(args), kwargs=kwargs)
                return {"results": results}
            case LoadAdapter():
                await self._load(message)
            case UnloadAdapter(name=name):
                await engine.remove_lora(self.adapter(name).lora_int_id)
                del self._adapters[name]
            case WeightTransfer(action=action, info=info):
                return await self._weights(action, info)
            case _:
                raise UnsupportedFeatureError(
                    "control", value=type(message).__name__, where="the vllm engine", way_out="Leave it out."
                )
        return {}

    async def _load(self, message: LoadAdapter) -> None:
        from vllm.lora.request import LoRARequest

        known = self._adapters.get(message.name)
        number = known.lora_int_id if known is not None else next(self._serial)
        inplace = {"load_inplace": True} if message.load_inplace else {}
        adapter = LoRARequest(lora_name=message.name, lora_int_id=number, lora_path=message.path, **inplace)
        await self._engine.add_lora(adapter)
        self._adapters[message.name] = adapter

    async def _weights(self, action: str, info: Mapping[str, Any]) -> dict[str, Any]:
        """One step of the weight-update protocol, under the route's name."""
        engine = self._engine
        if action not in WEIGHT_ACTIONS:
            raise InvalidRequestError(f"unknown weight action {action!r}", param="action")
        if action == "weight_info":
            return {"weight_version": await engine.get_weight_version()}
        if action == "get_world_size":
            parallel = engine.vllm_config.parallel_config
            include_dp = str(info.get("include_dp", "true")).lower() != "false"
            return {"world_size": parallel.world_size_across_dp if include_dp else parallel.world_size}
        if action == "update_weight_version":
            new_version = str(info["new_version"])
            await engine.update_weight_version(new_version)
            self.weight_version = new_version
            return {"success": True, "new_version": new_version}
        if action == "finish_weight_update":
            version = info.get("weight_version")
            await engine.finish_weight_update(**({"weight_version": version} if version is not None else {}))
            await self.learn_weight_version()
        elif action in ("init_weight_transfer_engine", "update_weights"):
            await getattr(engine, action)(_weight_request(action, info))
        elif action == "weight_checker":
            return {"checksums": await engine.compute_weight_checksums()}
        else:
            await getattr(engine, action)()
        return {}


def _weight_request(action: str, info: Mapping[str, Any]) -> Any:
    from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest

    if action == "update_weights":
        return WeightTransferUpdateRequest(update_info=info["update_info"])
    return WeightTransferInitRequest(init_info=info["init_info"])


def _pause_arguments(function: Callable[..., Any], mode: str, clear_cache: bool) -> dict[str, Any]:
    """`mode`, which older versions had as a flag to wait."""
    if "mode" in accepts(function):
        return {"mode": mode, "clear_cache": clear_cache}
    if mode == "keep":
        raise UnsupportedFeatureError("mode", value=mode, where="this vLLM", way_out="Use abort or wait.")
    return {"wait_for_inflight_requests": mode == "wait", "clear_cache": clear_cache}


def _known(function: Callable[..., Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that the function takes; one that it does not take may only be false."""
    names = accepts(function)
    for name, value in wanted.items():
        if name not in names and value:
            raise UnsupportedFeatureError(name, value=value, where="this vLLM", way_out="Upgrade vLLM or leave it out.")
    return {name: value for name, value in wanted.items() if name in names}
