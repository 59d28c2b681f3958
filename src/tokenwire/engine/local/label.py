"""The label of the weights, as the front end keeps it: a core that starts again is told of it."""

from __future__ import annotations

from typing import Any

from tokenwire.engine.control import WeightTransfer
from tokenwire.errors import NotServedError

WEIGHT_VERSION = "default"
"""The label of weights as they were loaded."""
LABEL_ACTIONS = frozenset({"update_weight_version", "weight_info"})
"""Of weight transfer the core knows the label only: its weights are those that it loaded."""


class WeightLabel:
    """What was last set, if anything was."""

    def __init__(self) -> None:
        self.last_set: WeightTransfer | None = None

    def note(self, message: WeightTransfer) -> None:
        """Remember a label that is set. Raises `NotServedError` for steps that are not about labels."""
        if message.action not in LABEL_ACTIONS:
            raise NotServedError(
                f"/{message.action} is not implemented by this server. The local engine takes no new weights while it "
                "runs, only a new label (/update_weight_version): restart it with the new ones, or use --engine vllm."
            )
        if message.action == "update_weight_version":
            self.last_set = message

    def facts(self, message: WeightTransfer) -> dict[str, Any]:
        """The answer of a core that is away, as it will be when it is back."""
        version = WEIGHT_VERSION if self.last_set is None else str(self.last_set.info["new_version"])
        return label_facts(message, version)


def label_facts(message: WeightTransfer, version: str) -> dict[str, Any]:
    """Facts for the reply, where `version` is the label now."""
    if message.action == "update_weight_version":
        return {"success": True, "new_version": version}
    return {"weight_version": version}
