"""`judge.kind = "llm"`: votes of a model behind any OpenAI-compatible endpoint, by default our own base weights."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from openclaw_rl.config import Config, JudgeConfig
from openclaw_rl.judging.base import JudgeError, JudgeMisconfigured, JudgeUnavailable, output_of, task_of
from openclaw_rl.judging.endpoint import OF_THIS_REQUEST, ChatEndpoint, Refused, Unreachable
from openclaw_rl.judging.hint_candidates import REFUSED
from openclaw_rl.judging.prompt_files import load_prompt
from openclaw_rl.judging.text import answer_text, head_tail, shared_budget
from openclaw_rl.judging.votes import Tally, Vote, aggregate, defuse, parse_vote, settled
from openclaw_rl.types import Judgement, Message, Turn

MAX_TOOLS_CHARS = 1500
MAX_REPLY_CHARS = 4000
"""Of a raw reply, as it is kept with the judgement."""
STRAGGLER_S = 1.0
STRAGGLER_SHARE = 0.5
"""Once the score stands, votes still under way (perhaps with a better hint) get this much of the time used so far."""
RESPONSE_FORMAT = {
    "type": "json_schema",
    "json_schema": {
        "name": "verdict",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"score": {"type": "integer", "enum": [1, 0, -1]}, "hint": {"type": ["string", "null"]}},
            "required": ["score", "hint"],
            "additionalProperties": False,
        },
    },
}


def endpoint_of(config: Config) -> str:
    """The endpoint's base URL without a trailing slash; this gateway's own by default."""
    if config.judge.base_url is not None:
        return config.judge.base_url.rstrip("/")
    host = f"[{config.serving.host}]" if ":" in config.serving.host else config.serving.host
    return f"http://{host}:{config.serving.port}/v1"


def key_of(config: Config, environment: Mapping[str, str] = os.environ) -> str | None:
    """The endpoint's key: from the named environment variable, or the gateway's own first key; None without any.

    Raises:
        JudgeMisconfigured: if the variable named is not set.
    """
    name = config.judge.api_key_env
    if name is not None:
        if not environment.get(name):
            raise JudgeMisconfigured(f"judge.api_key_env names {name}, which is not set")
        return environment[name]
    if config.judge.base_url is None and config.serving.api_keys:
        return config.serving.api_keys[0].key.get_secret_value()
    return None


def described(messages: Sequence[Message]) -> str:
    """Messages as text, each with its role; further lines are indented, so that no text can pose as a message."""
    shown = (answer_text(message).replace("\n", "\n  ") for message in messages)
    return "\n".join(f"[{message.get('role', '?')}] {text}" for message, text in zip(messages, shown, strict=True))


def offered(tools: Sequence[Mapping[str, Any]]) -> str:
    """The tools offered, a line each: the name, and the first line of what it is for."""
    functions = [tool.get("function", tool) for tool in tools]
    lines = [(str(one.get("name", "?")), str(one.get("description") or "").strip()) for one in functions]
    return "\n".join(f"{name}: {text.splitlines()[0]}" if text else name for name, text in lines)


@dataclass(kw_only=True, slots=True)
class Ballot:
    """The votes that are in: raw replies with what was read in them, and the reasons why others were lost."""

    replies: list[str] = field(default_factory=list)
    votes: list[Vote] = field(default_factory=list)
    lost: list[Refused | Unreachable] = field(default_factory=list)

    def take(self, vote: asyncio.Task[str]) -> None:
        """Count a vote that has ended; an error of our own is raised."""
        try:
            reply = vote.result()
        except (Refused, Unreachable) as error:
            self.lost.append(error)
        else:
            self.replies.append(reply)
            self.votes.append(parse_vote(reply))


class LlmJudge:
    """m votes in parallel on one prompt; a share of the valid ones decides."""

    kind = "llm"

    def __init__(
        self,
        config: JudgeConfig,
        *,
        base_url: str,
        key: str | None,
        structured: bool,
        transport: httpx.AsyncBaseTransport | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Remember the endpoint. `structured`: ask for JSON first, and stop asking if the endpoint refuses that.

        Raises:
            JudgeMisconfigured: if the base URL is none.
        """
        _check_url(base_url)
        self._config = config
        self._prompt = load_prompt("llm_judge")
        self._rng = rng or random.Random()
        self._endpoint = ChatEndpoint(
            base_url=base_url,
            key=key,
            timeout_s=config.timeout_s,
            max_retries=config.max_retries,
            response_format=RESPONSE_FORMAT if structured else None,
            # Our own gateway is on this machine: a proxy of the environment must not be shown the conversations.
            trust_env=config.base_url is not None,
            transport=transport,
            rng=self._rng,
        )

    @property
    def prompt_version(self) -> str:
        """The prompt's name and hash."""
        return self._prompt.version

    async def judge(self, turn: Turn) -> Judgement:
        """Judge one turn within `turn_timeout_s`; each vote has `timeout_s`, and none waits for another.

        Raises:
            JudgeUnavailable: if the endpoint answered no vote, or refuses everything.
            JudgeError: if the endpoint refused every vote on this turn.
        """
        started = time.monotonic()
        ballot = await self._poll(self._messages(turn), started)
        if not ballot.votes:
            raise no_vote(ballot.lost)
        tally = aggregate(
            ballot.votes,
            task=task_of(turn),
            threshold=self._config.vote_threshold,
            min_valid=self._config.min_valid_votes,
        )
        accepted = tally.hints.accepted
        return Judgement(
            turn_id=turn.turn_id,
            kind=self.kind,
            outcome=tally.outcome,
            score=None if tally.score is None else float(tally.score),
            hint=next(iter(accepted), None),
            alternatives=accepted[1:],
            prompt_version=self.prompt_version,
            latency_s=time.monotonic() - started,
            details=_details(ballot, tally),
            created_at=time.time(),
        )

    async def _poll(self, messages: Sequence[Message], started: float) -> Ballot:
        """Ask for all votes at once; end when all are in, or the score stands and stragglers had their time."""
        ballot = Ballot()
        pending = {asyncio.create_task(self._endpoint.reply(self._body(messages))) for _ in range(self._config.votes)}
        end = started + self._config.turn_timeout_s
        stands = False
        try:
            while pending and (left := end - time.monotonic()) > 0:
                done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                for vote in done:
                    ballot.take(vote)
                if not stands and self._stands(ballot, len(pending)):
                    stands = True
                    now = time.monotonic()
                    end = min(end, now + max(STRAGGLER_S, STRAGGLER_SHARE * (now - started)))
        finally:
            for vote in pending:
                vote.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        ballot.lost += [Unreachable("straggler" if stands else "timeout") for _ in pending]
        return ballot

    def _stands(self, ballot: Ballot, outstanding: int) -> bool:
        config = self._config
        return settled(ballot.votes, outstanding, threshold=config.vote_threshold, min_valid=config.min_valid_votes)

    def _messages(self, turn: Turn) -> tuple[Message, ...]:
        parts = {
            "task": task_of(turn),
            "conversation": described(turn.request.messages),
            "output": output_of(turn),
            "next_state": described(turn.next_state or ()),
        }
        limits = shared_budget([len(text) for text in parts.values()], self._config.shown_chars)
        shown = {
            name: defuse(head_tail(text, limit)) or "(nothing)"
            for (name, text), limit in zip(parts.items(), limits, strict=True)
        }
        tools = defuse(head_tail(offered(turn.request.tools), MAX_TOOLS_CHARS)) or "(none)"
        return self._prompt.messages({**shown, "tools": tools})

    def _body(self, messages: Sequence[Message]) -> dict[str, Any]:
        return {
            "model": self._config.model,
            "messages": [dict(message) for message in messages],
            "temperature": self._config.temperature,
            "max_tokens": self._config.max_tokens,
            "seed": self._rng.randrange(2**31),
        }

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()


def _check_url(base_url: str) -> None:
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise JudgeMisconfigured(f"judge.base_url {base_url!r}: {error}") from error
    if not url.host or not 0 < (url.port or 80) < 2**16:
        raise JudgeMisconfigured(f"judge.base_url {base_url!r} names no host, or a port that there cannot be")


def _details(ballot: Ballot, tally: Tally) -> dict[str, Any]:
    """What a judgement rests on. The raw replies are among it: they show why every score is the same."""
    reasons = Counter(
        lost.reason if isinstance(lost, Unreachable) else f"status_{lost.status}" for lost in ballot.lost
    )
    return {
        "by": "votes",
        "counts": {str(value): count for value, count in tally.counts.items()},
        "problems": tally.problems,
        "lost": len(ballot.lost),
        "lost_by": dict(reasons),
        "replies": [reply[:MAX_REPLY_CHARS] for reply in ballot.replies],
        **({REFUSED: dict(tally.hints.refused)} if tally.hints.refused else {}),
    }


def no_vote(lost: Sequence[Refused | Unreachable]) -> JudgeError:
    """Why no vote came: the endpoint is away or refuses all that we ask (unavailable), or it refuses this turn."""
    away = [error for error in lost if isinstance(error, Unreachable)]
    if away:
        asked = [error.retry_after_s for error in away if error.retry_after_s is not None]
        return JudgeUnavailable(away[0].reason, str(away[0]), retry_after_s=max(asked, default=None))
    refused = [error for error in lost if isinstance(error, Refused)]
    of_all = [error for error in refused if error.status not in OF_THIS_REQUEST]
    if of_all:
        return JudgeUnavailable(f"status_{of_all[0].status}", str(of_all[0]))
    return JudgeError(f"status_{refused[0].status}", str(refused[0]))
