"""The weight-update protocol as calls of AsyncLLM, and the label of the weights that are in use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenwire.engine.vllm.support import accepts
from tokenwire.errors import GenerationError, InvalidRequestError, NotServedError, UnsupportedFeatureError

_TRANSFER = frozenset(
    {
        *("init_weight_transfer_engine", "shutdown_weight_transfer_engine", "start_weight_update"),
        *("start_draft_weight_update", "update_weights", "finish_weight_update"),
    }
)
"""Actions that are methods of the same name and need a transfer backend."""


class Weights:
    """Carries out the steps of an update on one AsyncLLM."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.version: str | None = None
        """The committed label, where this vLLM has labels. vLLM tells spans with a sequence's last output only; this
        names the weights of a sequence that is ended here, at a stop string."""

    async def learn_version(self) -> None:
        if hasattr(self._engine, "get_weight_version"):
            self.version = await self._engine.get_weight_version()

    async def carry_out(self, action: str, info: Mapping[str, Any]) -> dict[str, Any]:
        """One step under the route's name; facts for the reply. Raises `NotServedError` for what this vLLM, or its
        flags, leave out."""
        match action:
            case "weight_info":
                self.version = await self._call("get_weight_version")
                return {"weight_version": self.version}
            case "update_weight_version":
                await self._call("update_weight_version", info["new_version"])
                self.version = info["new_version"]
                return {"success": True, "new_version": self.version}
            case "weight_checker":
                return await self._check(str(info["action"]), info.get("baseline"))
            case "get_world_size":
                return {"world_size": self._world_size(bool(info.get("include_dp", True)))}
            case _ if action in _TRANSFER:
                await self._transfer(action, info)
                return {}
            case _:
                raise InvalidRequestError(f"unknown weight action {action!r}", param="action")

    async def _transfer(self, action: str, info: Mapping[str, Any]) -> None:
        if getattr(self._engine.vllm_config, "weight_transfer_config", None) is None:
            raise NotServedError(
                f"{action} needs a transfer backend: start vLLM with -- --weight-transfer-config "
                '\'{"backend": "nccl"}\'.'
            )
        match action:
            case "init_weight_transfer_engine" | "update_weights":
                await self._call(action, _request_of(action, info))
            case "finish_weight_update":
                await self._finish(info.get("weight_version"))
            case _:
                await self._call(action)

    async def _finish(self, version: str | None) -> None:
        """The new label counts once the update has succeeded; without one the old label stays."""
        function = self._method("finish_weight_update")
        if version is None:
            await function()
        elif "weight_version" in accepts(function):
            await function(weight_version=version)
        else:
            raise UnsupportedFeatureError(
                "weight_version", value=version, where="this vLLM", way_out="Upgrade vLLM or leave it out."
            )
        await self.learn_version()

    async def _check(self, action: str, baseline: Mapping[str, str] | None) -> dict[str, Any]:
        if action == "reset":
            await self._call("collective_rpc", "reset_weights")
            return {"status": "reset"}
        checksums: dict[str, str] = {}
        for of_worker in await self._call("compute_weight_checksums"):
            if twice := checksums.keys() & of_worker.keys():
                raise GenerationError(f"Several workers gave checksums of {', '.join(sorted(twice)[:3])}.")
            checksums.update(of_worker)
        if action == "checksum":
            return {"checksums": checksums}
        if baseline is None:
            raise InvalidRequestError("action='compare' requires a 'baseline' object of checksums.", param="baseline")
        names = checksums.keys() | baseline.keys()
        different = sorted(name for name in names if checksums.get(name) != baseline.get(name))
        return {"match": not different, "mismatches": different}

    def _world_size(self, include_dp: bool) -> int:
        parallel = self._engine.vllm_config.parallel_config
        return int(parallel.world_size_across_dp if include_dp else parallel.world_size)

    def _method(self, name: str) -> Any:
        method = getattr(self._engine, name, None)
        if method is None:
            raise NotServedError(f"This vLLM has no {name}. Upgrade vLLM.")
        return method

    async def _call(self, name: str, *args: Any) -> Any:
        return await self._method(name)(*args)


def _request_of(action: str, info: Mapping[str, Any]) -> Any:
    from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest

    if action == "update_weights":
        return WeightTransferUpdateRequest(update_info=info["update_info"])
    return WeightTransferInitRequest(init_info=info["init_info"])
