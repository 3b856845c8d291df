"""What vLLM's workers are given, with a worker of our own in their place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from openclaw_rl.serving.engines.vllm.in_vllm.openclaw_rl_in_vllm import (
    WorkerExtension,
    for_adapters_only,
    sparing_unread,
    undrawing_unread,
)


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


def shrink(inputs: Any, weights: Any, output: Any, indices: Any, scaling: float = 1.0) -> None:
    """As vLLM's: rows of `inputs` times the weights of their adapter."""
    output[:] = scaling * torch.einsum("bi,boi->bo", inputs, weights[indices])


def expand(inputs: Any, weights: Any, output: Any, indices: Any, add_inputs: bool = True) -> None:
    output[:] = torch.einsum("bi,boi->bo", inputs, weights[indices]) + (output if add_inputs else 0.0)


def asked_in_eager(operation: Any, *given: Any) -> None:
    for_adapters_only(operation)(*given)


def asked_compiled(operation: Any, *given: Any) -> None:
    torch.compile(for_adapters_only(operation), backend="eager", fullgraph=True)(*given)


@pytest.mark.parametrize("ask", [asked_in_eager, asked_compiled])
def test_the_last_adapter_is_not_applied_to_the_base(ask: Any) -> None:
    weights = torch.stack([torch.eye(2), 2 * torch.eye(2), torch.full((2, 2), float("nan"))])
    inputs = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
    indices = torch.tensor([1, -1, 0, 1])
    output = torch.zeros(4, 2)
    ask(shrink, inputs, weights, output, indices, 0.5)
    assert output.tolist() == [[1.0, 2.0], [0.0, 0.0], [2.5, 3.0], [7.0, 8.0]]
    ask(expand, inputs, weights, output, indices, True)
    assert output.tolist() == [[3.0, 6.0], [0.0, 0.0], [7.5, 9.0], [21.0, 24.0]]
    for nobody in ([-1], [-1] * 4):
        whole = torch.zeros(4, 2)
        ask(expand, inputs, weights, whole, torch.tensor(nobody))
        assert whole.tolist() == [[0.0, 0.0]] * 4, "one index may stand for all rows"


@pytest.mark.parametrize("ask", [asked_in_eager, asked_compiled])
@pytest.mark.parametrize("indices", [[1, 1, 1, 1], [2, 0, 2, 1]])
def test_each_row_is_multiplied_by_its_own_adapter(ask: Any, indices: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    weights, inputs = torch.randn(3, 5, 2, generator=generator), torch.randn(4, 2, generator=generator)
    output = torch.zeros(4, 5)
    ask(shrink, inputs, weights, output, torch.tensor(indices), 2.0)
    expected = torch.stack([2.0 * weights[index] @ row for index, row in zip(indices, inputs, strict=True)])
    torch.testing.assert_close(output, expected)


class Runner:
    """As vLLM's: draws for every row, and takes back by counting what it drew for a prompt that is not read yet."""

    def __init__(self, unread: list[bool]) -> None:
        generators = {row: torch.Generator().manual_seed(row) for row in range(len(unread)) if row != 1}
        self.input_batch = SimpleNamespace(generators=generators)
        self.discard_request_mask = SimpleNamespace(np=unread)

    def sample(self) -> dict[int, float]:
        generators = self.input_batch.generators
        return {row: float(torch.rand(1, generator=generator)) for row, generator in generators.items()}

    def bookkeeping(self) -> str:
        for row, unread in enumerate(self.discard_request_mask.np):
            if unread and (generator := self.input_batch.generators.get(row)) is not None:
                generator.set_offset(generator.get_offset() - 4)
        return "booked"


def test_a_prompt_that_is_read_in_pieces_draws_as_one_that_is_not() -> None:
    """Row 2 is not read to its end in the first pass; row 1 has no seed. vLLM itself ends at this."""
    runner: Any = Runner([False, False, True])
    draw, book = undrawing_unread(Runner.sample), sparing_unread(Runner.bookkeeping)
    with pytest.raises(RuntimeError, match="offset"):
        runner.bookkeeping()
    first = draw(runner)
    assert book(runner) == "booked"
    assert sorted(runner.input_batch.generators) == [0, 2]
    runner.discard_request_mask.np = [False, False, False]
    second = draw(runner)
    assert book(runner) == "booked"
    alone = Runner([False, False, False])
    once, twice = alone.sample(), alone.sample()
    assert (first[0], second[0]) == (once[0], twice[0])
    assert second[2] == once[2], "its first draw that counts is its first"
