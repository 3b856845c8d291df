"""Token ids of answers that somebody else's model gave: from their text, by the engine's own rendering.

They are what our model would have to say to say the same, not what anybody drew: no log-probability belongs to them,
and none is invented.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from openclaw_rl.config import ModelConfig
from openclaw_rl.serving.engines.protocol import InvalidEngineRequest
from openclaw_rl.serving.engines.rendering import Renderer
from openclaw_rl.types import NO_VERSION, Message, TokenRecord

GENERATION_CONFIG = "generation_config.json"
UNRENDERABLE = TokenRecord(prompt_ids=(), response_ids=(), logprobs=(), versions=())


class Reconstructor:
    """One model's way of writing messages as tokens."""

    def __init__(self, renderer: Renderer, end_ids: Collection[int]) -> None:
        """`end_ids`: the tokens with which an answer ends."""
        self._renderer = renderer
        self._end_ids = frozenset(end_ids)

    @classmethod
    def of(cls, config: ModelConfig) -> Reconstructor:
        """The configured model's.

        Raises:
            ConfigError: there is no such model, or it has no chat template.
        """
        from openclaw_rl.models import load_tokenizer, resolve_model

        path = resolve_model(config)
        tokenizer = load_tokenizer(path)
        return cls(Renderer(tokenizer), end_tokens(path, tokenizer))

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """What the engine would read; empty where it would refuse to."""
        try:
            return self._renderer.render(messages, tools)
        except InvalidEngineRequest:
            return ()

    def tokens(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], answer: Message) -> TokenRecord:
        """Prompt and response of one answer; log-probabilities are absent.

        A template that writes a given answer in another way than it opens one (by dropping its thinking, say) leaves
        no response to be found: both are empty then, and the turn is excluded for it.
        """
        prompt = self.prompt_ids(messages, tools)
        try:
            whole = self._renderer.render((*messages, answer), tools, generation_prompt=False)
        except InvalidEngineRequest:
            return UNRENDERABLE
        if not prompt or whole[: len(prompt)] != prompt:
            return UNRENDERABLE
        response = self._until_end(whole[len(prompt) :])
        return TokenRecord(
            prompt_ids=prompt,
            response_ids=response,
            logprobs=(None,) * len(response),
            versions=(NO_VERSION,) * len(response),
        )

    def _until_end(self, response: tuple[int, ...]) -> tuple[int, ...]:
        """Without what the template writes after the token that ends an answer."""
        ends = [place for place, token in enumerate(response) if token in self._end_ids]
        return response[: ends[-1] + 1] if ends else response


def end_tokens(path: Path, tokenizer: Any) -> frozenset[int]:
    """The tokens after which the engine ends an answer: those of the generation config, and the tokenizer's own."""
    file = path / GENERATION_CONFIG
    configured = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id") if file.is_file() else None
    listed = configured if isinstance(configured, list) else [configured]
    return frozenset(int(token) for token in (*listed, tokenizer.eos_token_id) if token is not None)
