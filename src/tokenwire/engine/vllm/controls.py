"""Control messages as calls of AsyncLLM. Arguments that an older vLLM does not take are left out at their defaults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from tokenwire.engine.base import EngineStatus
from tokenwire.engine.control import (
    CollectiveRpc,
    Control,
    Describe,
    IsSleeping,
    KvEventSources,
    LoadAdapter,
    Pause,
    Profile,
    ReleaseKvCache,
    ResetEncoderCache,
    ResetMediaCache,
    ResetPrefixCache,
    Resume,
    Sleep,
    UnloadAdapter,
    WakeUp,
    WeightTransfer,
)
from tokenwire.engine.vllm.adapters import Adapters
from tokenwire.engine.vllm.errors import translated
from tokenwire.engine.vllm.support import accepts, flag, tag_of
from tokenwire.engine.vllm.weights import Weights
from tokenwire.errors import InvalidRequestError, NotServedError, UnsupportedFeatureError


class Controls:
    """Carries out control messages on one AsyncLLM, and knows whether it stands still because of them."""

    def __init__(self, engine: Any, adapters: Adapters, obeyed: frozenset[str]) -> None:
        """`obeyed`: tags of the messages that this vLLM can carry out."""
        self._engine = engine
        self._obeyed = obeyed
        self._adapters = adapters
        self._asleep = False
        """Memory was given back: steps would crash."""
        self.weights = Weights(engine)
        self.status = EngineStatus.READY
        """READY, PAUSED or FROZEN."""

    async def carry_out(self, message: Control) -> dict[str, Any]:
        """Facts for the reply. Raises our errors only."""
        if tag_of(type(message)) not in self._obeyed:
            raise NotServedError(f"This vLLM, with its flags, has no {tag_of(type(message))}.")
        with translated():
            match message:
                case Pause() | Sleep():
                    return await self._stand_still(message)
                case Resume() | WakeUp():
                    return await self._go_on(message)
                case LoadAdapter():
                    await self._adapters.load(message)
                case UnloadAdapter(name=name):
                    await self._adapters.unload(name)
                case WeightTransfer(action=action, info=info):
                    return await self.weights.carry_out(action, info)
                case _:
                    return await self._ask(message)
        return {}

    async def _stand_still(self, message: Pause | Sleep) -> dict[str, Any]:
        """The status counts from the first moment: a pause that waits takes nothing new meanwhile."""
        before = self.status
        frozen = message.mode == "keep" and (isinstance(message, Pause) or message.level == 0)
        self.status = EngineStatus.FROZEN if frozen else EngineStatus.PAUSED
        try:
            if isinstance(message, Pause):
                pause = self._engine.pause_generation
                await pause(**_pause_arguments(pause, message.mode, message.clear_cache))
            else:
                await self._sleep(message)
        except BaseException:
            self.status = before
            raise
        return {}

    async def _sleep(self, message: Sleep) -> None:
        if message.level > 0 and not flag(self._engine.vllm_config, "enable_sleep_mode"):
            raise NotServedError(
                f"sleep at level {message.level} needs vLLM's sleep mode: start it with -- --enable-sleep-mode (GPUs "
                "only). Level 0 pauses and keeps the memory."
            )
        mode = {"mode": message.mode} if message.mode != "abort" else {}
        await self._engine.sleep(**_known(self._engine.sleep, {"level": message.level, **mode}))
        self._asleep = message.level > 0

    async def _go_on(self, message: Resume | WakeUp) -> dict[str, Any]:
        if isinstance(message, Resume):
            if self._asleep:
                raise InvalidRequestError("The engine is asleep, not only paused: POST /wake_up.")
            await self._engine.resume_generation()
            self.status = EngineStatus.READY
            return {}
        awake = await self._engine.wake_up(message.tags)
        if awake is None:  # older versions do not say
            awake = message.tags is None or not await self._engine.is_sleeping()
        if awake:
            self._asleep = False
            self.status = EngineStatus.READY
        return {"fully_awake": bool(awake)}

    async def _ask(self, message: Control) -> dict[str, Any]:
        engine = self._engine
        match message:
            case ResetPrefixCache(reset_running_requests=running, reset_external=external):
                wanted = {"reset_running_requests": running, "reset_connector": external}
                done = await engine.reset_prefix_cache(**_known(engine.reset_prefix_cache, wanted))
                return {"success": done is not False}
            case ResetMediaCache():
                await engine.reset_mm_cache()
            case ResetEncoderCache():
                await engine.reset_encoder_cache()
            case ReleaseKvCache():
                await engine.release_kv_cache_memory()
                self._asleep = True
            case IsSleeping():
                return {"is_sleeping": bool(await engine.is_sleeping())}
            case CollectiveRpc(method=method, args=args, kwargs=kwargs, timeout_s=timeout):
                results = await engine.collective_rpc(method, timeout=timeout, args=tuple(args), kwargs=kwargs)
                return {"results": results}
            case Profile(action=action, options=options):
                function = engine.start_profile if action == "start" else engine.stop_profile
                await function(**_known(function, options))
            case Describe(format=format):
                return {"config": await asyncio.to_thread(_described, engine.vllm_config, format)}
            case KvEventSources():
                return {"sources": {str(k): _described(v, "json") for k, v in engine.get_kv_event_sources().items()}}
        return {}


def _described(config: Any, format: str) -> Any:
    """One of vLLM's configuration records as its own text, or as plain data."""
    if format == "text":
        return str(config)
    from pydantic import TypeAdapter

    return TypeAdapter(type(config)).dump_python(config, mode="json", fallback=str)


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
