"""Good answers to plain questions, which any policy should go on finding likely."""

from __future__ import annotations

import json
from importlib.resources import files

from openclaw_rl.serving.engines.rendering import Renderer
from openclaw_rl.training.gatekeeper import KnownAnswer

DATA = "data/plain_answers.jsonl"


def plain_answers(renderer: Renderer) -> list[KnownAnswer]:
    """The questions and answers that come with the program, as this model's template writes them."""
    lines = (files("openclaw_rl.training") / DATA).read_text(encoding="utf-8").splitlines()
    return [_rendered(renderer, **json.loads(line)) for line in lines]


def _rendered(renderer: Renderer, *, question: str, answer: str) -> KnownAnswer:
    asked = ({"role": "user", "content": question},)
    prompt = tuple(renderer.render(asked, ()))
    whole = tuple(renderer.render((*asked, {"role": "assistant", "content": answer}), (), generation_prompt=False))
    pairs = enumerate(zip(prompt, whole, strict=False))
    shared = next((place for place, (asked_for, got) in pairs if asked_for != got), min(len(prompt), len(whole)))
    return KnownAnswer(prompt_ids=whole[:shared], response_ids=whole[shared:])
