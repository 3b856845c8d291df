"""A policy version for use elsewhere: its adapter, or a whole model of it, as safetensors or GGUF.

Everything is written beside its place and renamed there, so that a target is whole or not there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from peft import PeftModel

from openclaw_rl.config import ModelConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.model_paths import SMOLLM2
from openclaw_rl.models import load_causal_lm, load_tokenizer, resolve_model, smollm2_gguf
from openclaw_rl.policy_files import MANIFEST, WeightsKind, verify_manifest, weights_of

MERGED_DTYPE = "float32"
"""Merged weights are written as the trainer knows them; whoever serves them rounds them as they like."""


def export_adapter(adapter: Path, target: Path) -> None:
    """Copy a version's PEFT directory to `target`, checked against its manifest.

    Raises:
        ConfigError: `target` is there already, or the version is a whole model.
        CorruptPolicy: the version on disk is not what was written.
    """
    if weights_of(adapter).kind is WeightsKind.FULL:
        raise ConfigError(
            "this version is a whole model and has no adapter to export: openclaw-rl policy merge copies it"
        )
    _copy_checked(adapter, target)


def _copy_checked(version: Path, target: Path) -> None:
    """A copy of a version's directory as it was before it got its manifest."""
    verify_manifest(version)
    with _appearing(target) as directory:
        shutil.copytree(version, directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))


def merge(model: ModelConfig, adapter: Path | None, target: Path) -> None:
    """Write the base with the adapter merged in (`None`: the base itself) as a plain Hugging Face directory.

    Of a version that is a whole model, that is a copy of it.

    Raises:
        ConfigError: `target` is there already, or the model is not.
        CorruptPolicy: the version on disk is not what was written.
    """
    if adapter is not None and weights_of(adapter).kind is WeightsKind.FULL:
        _copy_checked(adapter, target)
        return
    with _appearing(target) as directory:
        merged_model(model, adapter).save_pretrained(directory)
        load_tokenizer(resolve_model(model)).save_pretrained(directory)


def merged_model(model: ModelConfig, adapter: Path | None) -> Any:
    """The base with the adapter merged in, or a version that is a whole model: in memory, on the CPU."""
    if adapter is not None:
        verify_manifest(adapter)
        if weights_of(adapter).kind is WeightsKind.FULL:
            return load_causal_lm(adapter, MERGED_DTYPE)
    base = load_causal_lm(resolve_model(model), MERGED_DTYPE)
    if adapter is None:
        return base
    return PeftModel.from_pretrained(base, str(adapter)).merge_and_unload()


def merge_to_gguf(model: ModelConfig, adapter: Path | None, target: Path, *, base_gguf: Path | None = None) -> None:
    """Write the merged policy as one GGUF file: the base's own GGUF, with the merged weights in it as float16.

    Tokenizer, chat template and hyper-parameters are copied from the base's file, because what llama.cpp wants there
    (the name of the pre-tokenizer, say) is in no Hugging Face directory. Norms stay float32.

    Raises:
        ConfigError: there is no GGUF of the base, it is of another architecture than Llama, or its tensors are not
            the model's; `target` is there already.
    """
    source = gguf.GGUFReader(_gguf_of(model, base_gguf))
    architecture = source.get_field("general.architecture")
    if architecture is None or architecture.contents() != "llama":
        raise ConfigError(
            "only Llama models can be written as GGUF: merge to a directory and use llama.cpp's converter"
        )
    policy = merged_model(model, adapter)
    tensors = _gguf_tensors(policy)
    expected = {tensor.name for tensor in source.tensors if not tensor.name.startswith("rope_")}
    if set(tensors) != expected:
        odd = ", ".join(sorted(set(tensors) ^ expected)[:3])
        raise ConfigError(f"the base's GGUF holds other tensors than the model ({odd}, ...): it is of another model")
    if target.exists():
        raise ConfigError(f"{target} is there already")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".writing-{target.name}")
    try:
        _write_gguf(temporary, source, tensors)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _gguf_of(model: ModelConfig, given: Path | None) -> Path:
    if given is not None:
        if not given.is_file():
            raise ConfigError(f"--gguf-base {given}: no such file")
        return given
    if model.path == SMOLLM2:
        return smollm2_gguf()
    raise ConfigError("a GGUF takes its tokenizer from the GGUF of the base: name that file with --gguf-base")


def _gguf_tensors(policy: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The model's tensors by their GGUF names, as they lie in a GGUF: matrices float16, norms float32."""
    config = policy.config
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    rows = {"q_proj.weight": config.num_attention_heads, "k_proj.weight": config.num_key_value_heads}
    found = {}
    for name, tensor in policy.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        to = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if to is None:
            raise ConfigError(f"GGUF has no name for {name}")
        heads = next((count for suffix, count in rows.items() if name.endswith(suffix)), None)
        values = tensor.detach().to(torch.float32).numpy()
        found[to] = _interleaved(values, heads) if heads else values
        if values.ndim > 1:
            found[to] = found[to].astype(np.float16)
    return found


def _interleaved(matrix: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows [heads * d, H] of a query or key projection in GGUF's order of rotary pairs.

    Hugging Face rotates row i of a head with row i + d/2, GGUF's Llama row 2i with row 2i + 1.
    """
    head = matrix.shape[0] // heads
    return matrix.reshape(heads, 2, head // 2, -1).swapaxes(1, 2).reshape(matrix.shape)


def _write_gguf(path: Path, source: gguf.GGUFReader, tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    for field in source.fields.values():
        # The writer makes these three itself; the file type says what the matrices are.
        if field.name.startswith("GGUF.") or field.name in {"general.architecture", "general.file_type"}:
            continue
        kinds = field.types
        sub_type = kinds[-1] if kinds[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kinds[0], sub_type)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for name, values in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """A directory that becomes `target` when everything went well."""
    if target.exists():
        raise ConfigError(f"{target} is there already")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield temporary
        os.chmod(temporary, 0o777 & ~_umask())
        os.rename(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
