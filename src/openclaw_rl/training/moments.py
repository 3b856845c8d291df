"""Adam, and where its moments lie between two steps: beside the weights, in host memory, or in a file.

The moments are twice as large as the weights that learn and are used for a moment of each step. Wherever they lie,
the same kernels read the same numbers: results are alike bit for bit.
"""

from __future__ import annotations

import copy
import logging
import mmap
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from openclaw_rl.config_sources import ConfigError

log = logging.getLogger(__name__)

MOMENTS = ("exp_avg", "exp_avg_sq")
_ALIGNMENT = 64


class Adam:
    """AdamW with its moments beside the weights. The others differ in where those lie."""

    def __init__(self, parameters: Iterable[nn.Parameter], settings: Mapping[str, Any]) -> None:
        self._adam = torch.optim.AdamW(list(parameters), **settings)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Torch's own: what the learning rate is set in."""
        return self._adam.param_groups

    def zero_grad(self) -> None:
        """Forget the gradients and free their memory."""
        self._adam.zero_grad(set_to_none=True)

    def step(self) -> None:
        """One update of the parameters."""
        self._adam.step()

    def state_dict(self) -> dict[str, Any]:
        """Torch's own form, whatever holds the moments; the tensors themselves, no copies."""
        state: dict[str, Any] = self._adam.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`, which stays as it is."""
        self._adam.load_state_dict(copy.deepcopy(dict(state)))

    def rest(self) -> None:
        """Nobody needs the moments for a while."""


class AdamOnHost(Adam):
    """The moments of weights on an accelerator, in the host's memory between two steps."""

    def step(self) -> None:
        """Bring the moments to their weights, update, and put them back."""
        self._move(None)
        self._adam.step()
        self._move(torch.device("cpu"))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`; what torch puts beside the weights goes back to the host."""
        super().load_state_dict(state)
        self._move(torch.device("cpu"))

    def _move(self, device: torch.device | None) -> None:
        """To `device`; None: to where each parameter is."""
        for parameter, moments in self._adam.state.items():
            for name in MOMENTS:
                moments[name] = moments[name].to(parameter.device if device is None else device)


class AdamInFile(Adam):
    """The moments of weights on the CPU, in a mapped file without a name in `directory`.

    The operating system brings in what a step touches and may drop it again; `rest` says that it should. No name: a
    killed process leaves nothing behind, and nobody resumes from it (checkpoints are what is resumed from). The
    file's space is taken at once, so that a full disk is an error at the start and not a crash in a step.

    Raises:
        ConfigError: there is no room for it.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], settings: Mapping[str, Any], directory: Path) -> None:
        super().__init__(parameters, settings)
        learning = [parameter for group in self._adam.param_groups for parameter in group["params"]]
        sizes = [_padded(parameter.numel() * parameter.element_size()) for parameter in learning]
        self._map = _mapped(directory, len(MOMENTS) * sum(sizes))
        offset = 0
        for parameter, size in zip(learning, sizes, strict=True):
            moments: dict[str, Tensor] = {"step": torch.tensor(0.0)}
            for name in MOMENTS:
                flat = torch.frombuffer(self._map, dtype=parameter.dtype, count=parameter.numel(), offset=offset)
                moments[name] = flat.view(parameter.shape)
                offset += size
            self._adam.state[parameter] = moments
        log.info("Adam's moments, %.0f MB, lie in a file in %s", offset / 1e6, directory)

    def step(self) -> None:
        """Update, and let go of the pages that were touched."""
        self._adam.step()
        self.rest()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Write `state` into the file; a parameter that it has no moments of begins at 0."""
        own = dict(enumerate(self._adam.state.values()))
        for number, moments in own.items():
            given = state["state"].get(number)
            for name, tensor in moments.items():
                tensor.zero_() if given is None else tensor.copy_(given[name])
        for group, given in zip(self._adam.param_groups, state["param_groups"], strict=True):
            group.update({name: value for name, value in given.items() if name != "params"})
        self.rest()

    def rest(self) -> None:
        """Give the memory back; what was written stays in the file."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


def adam(
    parameters: Iterable[nn.Parameter],
    settings: Mapping[str, Any],
    *,
    device: torch.device,
    offload: bool,
    directory: Path | None,
) -> Adam:
    """The optimiser for parameters on `device`; with `offload`, its moments lie elsewhere between two steps.

    That is the host's memory where `device` is an accelerator, and a file in `directory` where it is the CPU.
    """
    if not offload:
        return Adam(parameters, settings)
    if device.type != "cpu":
        return AdamOnHost(parameters, settings)
    if directory is None:
        raise ValueError("on a CPU the moments are offloaded to a file, which needs a directory")
    return AdamInFile(parameters, settings, directory)


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _mapped(directory: Path, size: int) -> mmap.mmap:
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=directory) as file:
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
        except OSError as error:
            raise ConfigError(
                f"training.offload_optimizer_state needs {size / 1e6:.0f} MB in {directory}: {error.strerror}"
            ) from error
        return mmap.mmap(file.fileno(), size)
