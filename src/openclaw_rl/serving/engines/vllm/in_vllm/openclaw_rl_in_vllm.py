"""What vLLM's worker cannot do by itself: given to it by `--worker-extension-cls`, asked for by `/collective_rpc`.

It is mixed into the worker's class, so its names begin with `openclaw_`. Imports nothing of ours, for the interpreter
is another one.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch

BASE = -1
"""The index of a row that belongs to no adapter."""
_LORA_OPERATIONS = ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice")


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


def for_adapters_only(operation: Callable[..., None]) -> Callable[..., None]:
    """An operation of vLLM's LoRA layers that leaves the rows of `output` alone that belong to no adapter.

    Their index is -1, which vLLM's operations for the CPU take for the last adapter (0.32; its pull requests 48421
    and 49656): in one batch with somebody's adapter, the base would answer as the last one that was loaded.

    vLLM's also copy an adapter's weights for each row. Asked once for each adapter, with one index for all of its
    rows, they multiply two matrices.
    """

    @functools.wraps(operation)
    def applied(
        inputs: torch.Tensor,
        weights: torch.Tensor,
        output: torch.Tensor,
        indices: torch.Tensor,
        *rest: Any,
        **named: Any,
    ) -> None:
        if torch.compiler.is_compiling():  # no branch on the indices then
            _all_at_once(operation, inputs, weights, output, indices, *rest, **named)
            return
        adapters = set(indices.tolist())
        if len(adapters) == 1:
            if adapters != {BASE}:
                operation(inputs, weights, output, indices[:1], *rest, **named)
            return
        for adapter in adapters - {BASE}:
            (rows,) = torch.nonzero(indices == adapter, as_tuple=True)
            own = output[rows]
            operation(inputs[rows], weights, own, indices[rows[:1]], *rest, **named)
            output[rows] = own

    return applied


def _all_at_once(
    operation: Callable[..., None],
    inputs: torch.Tensor,
    weights: torch.Tensor,
    output: torch.Tensor,
    indices: torch.Tensor,
    *rest: Any,
    **named: Any,
) -> None:
    """As vLLM does it, and then the rows of no adapter as before. No product with zero: an adapter may give NaN."""
    before = output.clone()
    operation(inputs, weights, output, indices.clamp(min=0), *rest, **named)
    output.copy_(torch.where((indices >= 0).unsqueeze(1), output, before))


def undrawing_unread(sample: Callable[..., Any]) -> Callable[..., Any]:
    """A runner's `_sample` after which those whose prompt is not read to its end have the random numbers of before.

    vLLM draws for them with the others, throws the token away, and takes the draw back (`sparing_unread`).
    """

    @functools.wraps(sample)
    def drawn(runner: Any, *given: Any, **named: Any) -> Any:
        before = {row: generator.get_state() for row, generator in _of_unread(runner).items()}
        output = sample(runner, *given, **named)
        for row, state in before.items():
            runner.input_batch.generators[row].set_state(state)
        return output

    return drawn


def sparing_unread(bookkeeping: Callable[..., Any]) -> Callable[..., Any]:
    """A runner's `_bookkeeping_sync` that leaves alone the generators of those whose prompt is not read to its end.

    vLLM counts them back, which a generator of the CPU cannot: one request with a seed, whose prompt is read in two
    pieces, ends the whole server (0.32).
    """

    @functools.wraps(bookkeeping)
    def kept(runner: Any, *given: Any, **named: Any) -> Any:
        generators, hidden = runner.input_batch.generators, _of_unread(runner)
        for row in hidden:
            del generators[row]
        try:
            return bookkeeping(runner, *given, **named)
        finally:
            generators.update(hidden)

    return kept


def _of_unread(runner: Any) -> dict[int, torch.Generator]:
    """The generators, by row, of those with a seed that draw for nobody in this pass."""
    unread = runner.discard_request_mask.np
    return {row: generator for row, generator in runner.input_batch.generators.items() if unread[row]}


def _mend() -> None:
    """Put them in the place of vLLM's, where this is a worker on a CPU; on a GPU what vLLM does is right.

    vLLM's second runner (`VLLM_USE_V2_MODEL_RUNNER`) has a sampler of its own, and is not looked after.
    """
    if (
        importlib.util.find_spec("vllm") is None
        or not importlib.import_module("vllm.platforms").current_platform.is_cpu()
    ):
        return
    operations = importlib.import_module("vllm.lora.ops.torch_ops.lora_ops")
    layers = importlib.import_module("vllm.lora.punica_wrapper.punica_cpu")
    for name in _LORA_OPERATIONS:
        mended = for_adapters_only(getattr(operations, name))
        setattr(operations, name, mended)
        setattr(layers, name, mended)
    runner = importlib.import_module("vllm.v1.worker.gpu_model_runner").GPUModelRunner
    runner._sample = undrawing_unread(runner._sample)
    runner._bookkeeping_sync = sparing_unread(runner._bookkeeping_sync)


_mend()
