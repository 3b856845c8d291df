"""What vLLM's worker cannot do by itself: given to it by `--worker-extension-cls`, asked for by `/collective_rpc`.

It is mixed into the worker's class, so its names begin with `openclaw_`. Imports nothing of ours, for the interpreter
is another one.
"""

from __future__ import annotations

from typing import Any

import torch


class WorkerExtension:
    """Methods of each worker."""

    model_runner: Any
    reload_weights: Any

    def openclaw_present(self) -> dict[str, bool]:
        """That it is there."""
        return {"present": True}

    def openclaw_reload(self, path: str) -> None:
        """Read a whole model's weights into the one that is there.

        vLLM processes what it has read, layer by layer. An output layer that is tied to the embedding is not read,
        and so not processed again; on a CPU its packed copy would stay the old model's.
        """
        self.reload_weights(weights_path=path)
        for module in self.model_runner.get_model().modules():
            method: Any = getattr(module, "quant_method", None)
            if type(module).__name__ == "ParallelLMHead" and type(method).__name__ == "UnquantizedEmbeddingMethod":
                method.process_weights_after_loading(module)

    def openclaw_heal_cache(self) -> None:
        """Put zeros in the place of what is not finite in the KV cache; the rest, and so whoever uses it, stays."""
        for cache in self.model_runner.kv_caches:
            if isinstance(cache, torch.Tensor) and cache.is_floating_point():
                torch.nan_to_num_(cache, nan=0.0, posinf=0.0, neginf=0.0)
