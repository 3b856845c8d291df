"""Sessions in every state that there is, written by the public methods."""

from __future__ import annotations

import json
from typing import Any

from openclaw_rl.config import Config
from openclaw_rl.rollout.loop import run_pass
from openclaw_rl.sessions.document import to_document
from openclaw_rl.store import Store
from openclaw_rl.store.verdicts import human_judgement
from openclaw_rl.types import SamplingParams, TokenRecord, TurnType
from tests.builders import Conversation, make_judgement, make_turn, user
from tests.store.helpers import candidate, step_record

ODD = TokenRecord(
    prompt_ids=(1, 2, 3),
    response_ids=(7, 8, 9),
    logprobs=(-0.1234567890123456789, float("-inf"), None),
    versions=(0, 1, 1),
    kept=((7, 8), None, (9,)),
)


def lived(store: Store, config: Config, session: str = "life") -> None:
    """A session with a trained turn, one sampled, one excluded, one side turn, one that failed, and feedback."""
    talk = Conversation(store, session)
    talk.chain("What is a tide?", "Too long.", "Thanks.")
    run_pass(store, config, 0.0)
    for turn, _ in store.turns.claim_for_judging(9, 60.0):
        store.turns.record_judgement(make_judgement(turn.turn_id, -1.0, hint="Be short."))
    run_pass(store, config, 0.0)
    claimed = store.samples.claim(1, 60.0)
    steps = len(store.samples.steps()) + 1
    store.samples.commit_step(step_record(steps, *(one.turn_id for one in claimed)), candidate(steps))
    store.feedback.record(human_judgement(f"{session}3", -0.5, "Say it in French."), key_id=None)
    run_pass(store, config, 0.0)
    talk.turn(f"{session}side", [user("Title?")], turn_type=TurnType.SIDE, side_rule="title")
    odd = talk.ask(f"{session}odd", [user("Ein Ω.")], parent=f"{session}3")
    sampling = SamplingParams(temperature=0.7, top_p=0.9, max_tokens=8, stop=("x",), seed=3)
    store.turns.record_turn(make_turn(request=odd, tokens=ODD, sampling=sampling), context_hash="odd")
    failed = talk.ask(f"{session}failed", [user("And?")])
    store.turns.record_failure(failed.turn_id, status="cancelled", error="client_gone")
    run_pass(store, config, 0.0)


def exported(store: Store, session: str) -> dict[str, Any]:
    """A session as its export, read back from text."""
    rows = store.archive.read(session)
    assert rows is not None
    tree: dict[str, Any] = json.loads(json.dumps(to_document(rows, store.archive.deployment()), allow_nan=False))
    return tree
