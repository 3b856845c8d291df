"""What vLLM's workers are given, with a worker of our own in their place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from openclaw_rl.serving.engines.vllm.in_vllm.openclaw_rl_in_vllm import WorkerExtension


class UnquantizedEmbeddingMethod:
    def process_weights_after_loading(self, layer: Any) -> None:
        layer.packed = layer.weight.detach().clone()


class ParallelLMHead(torch.nn.Module):
    def __init__(self, weight: torch.nn.Parameter) -> None:
        super().__init__()
        self.weight = weight
        self.quant_method = UnquantizedEmbeddingMethod()
        self.quant_method.process_weights_after_loading(self)


def test_a_tied_output_layer_is_packed_again() -> None:
    weight = torch.nn.Parameter(torch.zeros(4, 2))
    head: Any = ParallelLMHead(weight)
    model = torch.nn.ModuleList([head])

    def reload(weights_path: str) -> None:
        assert weights_path == "/new"
        weight.data.fill_(7.0)

    worker = WorkerExtension()
    worker.model_runner = SimpleNamespace(get_model=lambda: model)
    worker.reload_weights = reload
    worker.openclaw_reload("/new")
    assert bool((head.packed == 7.0).all())


def test_only_what_is_not_finite_is_taken_out_of_the_cache() -> None:
    first = torch.tensor([1.0, float("nan"), -2.0, float("inf")])
    second = torch.tensor([3, 4], dtype=torch.uint8)
    worker = WorkerExtension()
    worker.model_runner = SimpleNamespace(kv_caches=[first, second])
    worker.openclaw_heal_cache()
    assert first.tolist() == [1.0, 0.0, -2.0, 0.0]
    assert second.tolist() == [3, 4]
