"""A transfer backend for vLLM's workers that reads new parameters from a file: weight updates without a GPU.

`--worker-extension-cls tests.support.vllm_file_weights.Extension --weight-transfer-config '{"backend": "file"}'`;
`update_info` is `{"path": SAFETENSORS}`, whose tensors are copied over the parameters of the same names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from safetensors.torch import load_file
from vllm.distributed.weight_transfer.base import WeightTransferEngine
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory


@dataclass
class InitInfo:
    greeting: str = ""


@dataclass
class UpdateInfo:
    path: str


class FileWeights(WeightTransferEngine):  # type: ignore[misc]
    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """There is nobody to connect to."""

    def start_weight_update(self) -> None:
        """Parameters are changed where they are."""

    def finish_weight_update(self) -> None:
        """Each part was complete."""

    def shutdown(self) -> None:
        """There is nothing to let go."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: UpdateInfo) -> None:
        parameters = dict(self.model.named_parameters())
        for name, tensor in load_file(update_info.path).items():
            parameters[name].data.copy_(tensor)


class Extension:
    """Its import registers the backend; workers get its methods."""

    def count_parameters(self) -> dict[str, int]:
        return {"parameters": sum(p.numel() for p in self.model_runner.get_model().parameters())}  # type: ignore[attr-defined]


WeightTransferEngineFactory.register_engine("file", FileWeights)
