"""What learns: a LoRA adapter over a frozen base, or every weight of the model.

Both are a model that the scorer reads, the tensors that a step changes, and a directory that an engine can load. Of
an adapter the reference is the model with the adapter switched off; of whole weights it is a second, frozen model.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file
from torch import Tensor

from openclaw_rl.config import LoraConfig, TrainingConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.policy_files import ADAPTER_DIR, MODEL_DIR, WeightsKind, weights_of

WEIGHTS_FILE = "adapter_model.safetensors"
MODEL_FILE = "model.safetensors"
DIRECTORIES = {WeightsKind.LORA: ADAPTER_DIR, WeightsKind.FULL: MODEL_DIR}
"""Where a checkpoint keeps them."""
_ONE_FILE = "1000TB"
"""The size from which Transformers would cut a model's file in pieces."""


class Learned(Protocol):
    """What a trainer trains."""

    kind: WeightsKind
    model: Any
    """What the scorer reads, its learning parameters marked so."""
    reference: Any | None
    """The frozen copy that is the reference; None where it is `model` with its adapter off."""

    def tensors(self) -> dict[str, Tensor]:
        """What learns, by name: the very tensors, no copies."""
        ...

    def initial(self) -> dict[str, Tensor]:
        """What `tensors` were before the first step."""
        ...

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """Be these.

        Raises:
            ConfigError: they are of other names or shapes.
        """
        ...

    def save(self, directory: Path) -> None:
        """Write them as an engine loads them."""
        ...


class LearnedAdapter:
    """A LoRA adapter, by PEFT's names."""

    kind = WeightsKind.LORA
    reference = None

    def __init__(self, model: Any, config: LoraConfig, *, base_path: str) -> None:
        """Freeze `model` and put a fresh adapter on it; `base_path` is recorded in what is saved.

        Raises:
            ConfigError: the model has no such modules as the configuration's.
        """
        lora = PeftLoraConfig(
            r=config.rank,
            lora_alpha=config.alpha,
            lora_dropout=config.dropout,
            target_modules=list(config.target_modules),
            bias="none",
            task_type="CAUSAL_LM",
        )
        try:
            self.model: Any = get_peft_model(model, lora)
        except ValueError as error:
            raise ConfigError(f"training.lora does not fit this model: {error}") from error
        self.model.peft_config["default"].base_model_name_or_path = base_path
        self._initial = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.tensors().items()}

    def tensors(self) -> dict[str, Tensor]:
        """The factors A and B of every layer."""
        adapter: dict[str, Tensor] = get_peft_model_state_dict(self.model, save_embedding_layers=False)
        return adapter

    def initial(self) -> dict[str, Tensor]:
        """The random A, and B = 0."""
        return self._initial

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """Write into the adapter.

        Raises:
            ConfigError: as the protocol says.
        """
        if _shapes(tensors) != _shapes(self.tensors()):
            raise ConfigError("training.lora differs from that of the checkpoint to resume from")
        set_peft_model_state_dict(self.model, dict(tensors))

    def save(self, directory: Path) -> None:
        """A plain PEFT directory."""
        self.model.save_pretrained(directory, save_embedding_layers=False)


class LearnedModel:
    """Every parameter, by the model's own names; of tied ones (embedding and head) the first name counts."""

    kind = WeightsKind.FULL

    def __init__(self, model: Any, reference: Any, *, tokenizer: Any = None) -> None:
        """`reference`: a second copy of `model`, which is frozen here; `tokenizer` is saved beside the weights."""
        if reference is model:
            raise ValueError("the reference must be another object than the model that learns")
        self.model: Any = model.requires_grad_(True)
        self.reference: Any = reference.requires_grad_(False).eval()
        self._tokenizer = tokenizer

    def tensors(self) -> dict[str, Tensor]:
        """All parameters."""
        return dict(self.model.named_parameters())

    def initial(self) -> dict[str, Tensor]:
        """The reference's own parameters: the base never changes, so that no further copy is needed."""
        return dict(self.reference.named_parameters())

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """Write into the parameters, where they lie.

        Raises:
            ConfigError: as the protocol says.
        """
        own = self.tensors()
        if _shapes(tensors) != _shapes(own):
            raise ConfigError("model.path is another model than that of the checkpoint to resume from")
        with torch.no_grad():
            for name, tensor in tensors.items():
                own[name].copy_(tensor)

    def save(self, directory: Path) -> None:
        """A plain Transformers directory, its weights in one file."""
        self.model.save_pretrained(directory, max_shard_size=_ONE_FILE)
        if self._tokenizer is not None:
            self._tokenizer.save_pretrained(directory)


def learned_of(
    config: TrainingConfig, model: Any, reference: Any, *, base_path: str, tokenizer: Any
) -> LearnedAdapter | LearnedModel:
    """What the configuration has learn."""
    if config.use_lora:
        return LearnedAdapter(model, config.lora, base_path=base_path)
    return LearnedModel(model, reference, tokenizer=tokenizer)


def check_kind(config: TrainingConfig, found: WeightsKind) -> None:
    """That a checkpoint's weights are of the configured kind.

    Raises:
        ConfigError: they are of the other.
    """
    if (found is WeightsKind.LORA) == config.use_lora:
        return
    own, other = str(config.use_lora).lower(), str(not config.use_lora).lower()
    held = "a LoRA adapter" if found is WeightsKind.LORA else "a whole model"
    raise ConfigError(
        f"training.use_lora = {own}, and the checkpoint to resume from holds {held}: set training.use_lora = "
        f"{other}, or begin anew with another --run-dir"
    )


def read_weights(checkpoint: Path) -> tuple[WeightsKind, dict[str, Tensor]]:
    """What a checkpoint holds, or the directory of a version: on the CPU, mapped from the file where that can be.

    Raises:
        CorruptPolicy: it holds neither an adapter nor a model.
    """
    found = weights_of(checkpoint)
    file = WEIGHTS_FILE if found.kind is WeightsKind.LORA else MODEL_FILE
    return found.kind, load_file(found.directory / file)


def on_cpu(value: Any, *, copied: bool) -> Any:
    """Nested dictionaries and lists anew, every tensor in them detached and on the CPU; a copy, if `copied`."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=copied)
    if isinstance(value, Mapping):
        return {key: on_cpu(item, copied=copied) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(on_cpu(item, copied=copied) for item in value)
    return copy.deepcopy(value)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}
