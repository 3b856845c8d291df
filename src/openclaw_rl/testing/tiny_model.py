"""A tiny random Llama with SmolLM2's tokenizer: every mechanism of the real model, a thousand times faster."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from openclaw_rl.config import ModelConfig
from openclaw_rl.models import smollm2_gguf


def smollm2_tokenizer(cache_dir: Path | None = None) -> Any:
    """SmolLM2's tokenizer out of the GGUF, kept in the cache directory because reading it takes seconds."""
    gguf = smollm2_gguf()
    cache = (cache_dir or ModelConfig().cache_dir).expanduser()
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / f"{gguf.stem}-tokenizer"
    with FileLock(str(cache / f"{target.name}.lock")):
        if not target.is_dir():
            temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=cache))
            try:
                AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(temporary)
                os.replace(temporary, target)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
    return AutoTokenizer.from_pretrained(target)


def build_tiny_model(directory: Path, *, seed: int = 0, cache_dir: Path | None = None) -> Path:
    """Write a random two-layer Llama (hidden 64, 4 heads, 2 key heads) and the tokenizer into `directory`.

    The weights are larger than usual at the start, so that distributions are uneven and greedy choices are clear.
    """
    tokenizer = smollm2_tokenizer(cache_dir)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.15,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
