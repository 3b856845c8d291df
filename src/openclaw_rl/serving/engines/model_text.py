"""What an adapter must know of the model by itself: its tokenizer, our rendering, and which tokens end an answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openclaw_rl.serving.engines.rendering import Renderer


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelText:
    """The text side of a model. `vocabulary`: the number of its logits, padding included."""

    directory: Path
    tokenizer: Any
    renderer: Renderer
    end_tokens: frozenset[int]
    vocabulary: int


def load_model_text(directory: Path) -> ModelText:
    """Read it from the model's directory; no weights are read. Takes a second, so not in an event loop.

    Raises:
        ConfigError: Transformers cannot read it, or it has no chat template.
    """
    from transformers import AutoConfig, GenerationConfig

    from openclaw_rl.models import load_tokenizer

    tokenizer = load_tokenizer(directory)
    config = AutoConfig.from_pretrained(directory)
    try:
        generation = GenerationConfig.from_pretrained(directory)
    except OSError:  # none in the directory: the model's own configuration is the generation's as well
        generation = GenerationConfig.from_model_config(config)
    configured = generation.eos_token_id
    listed = configured if isinstance(configured, list) else [configured]
    ends = frozenset(int(token) for token in [*listed, tokenizer.eos_token_id] if token is not None)
    return ModelText(
        directory=directory,
        tokenizer=tokenizer,
        renderer=Renderer(tokenizer),
        end_tokens=ends,
        vocabulary=int(config.vocab_size),
    )
