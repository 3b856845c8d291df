"""`judge.kind = "llm"`: votes of a model behind any OpenAI-compatible endpoint, by default our own base weights."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from openclaw_rl.config import Config, JudgeConfig
from openclaw_rl.judging.base import JudgeError, JudgeMisconfigured, JudgeUnavailable, output_of, task_of
from openclaw_rl.judging.hint_candidates import REFUSED
from openclaw_rl.judging.prompt_files import load_prompt
from openclaw_rl.judging.text import answer_text, head_tail
from openclaw_rl.judging.votes import Vote, aggregate, defuse, parse_vote
from openclaw_rl.types import Judgement, Message, Turn

log = logging.getLogger(__name__)

MAX_CONVERSATION_CHARS = 6000
MAX_PART_CHARS = 4000
MAX_TOOLS_CHARS = 1000
BACKOFF_S = 0.5
MAX_BACKOFF_S = 8.0
_RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_SCHEMA = {
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


class _Refused(Exception):
    """The endpoint answered that it will not serve this request; trying again changes nothing."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the judge's endpoint answered {status}")
        self.status = status


class _Unreachable(Exception):
    """The endpoint did not answer, or is overloaded, after all retries."""


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


def described(messages: Sequence[Message], limit: int) -> str:
    """Messages as text with their roles, at most `limit` characters; the judge's markers are broken."""
    text = "\n".join(f"[{message.get('role', '?')}] {answer_text(message)}" for message in messages)
    return defuse(head_tail(text, limit)) or "(nothing)"


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
        """Remember the endpoint. `structured`: ask for JSON first, and stop asking if the endpoint refuses that."""
        self._config = config
        self._prompt = load_prompt("llm_judge")
        self._structured = structured
        self._rng = rng or random.Random()
        headers = {"X-No-Train": "1"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._client = httpx.AsyncClient(
            base_url=base_url.rstrip("/") + "/",
            headers=headers,
            transport=transport,
            timeout=config.timeout_s,
            # Our own gateway is on this machine: a proxy of the environment must not be shown the conversations.
            trust_env=config.base_url is not None,
        )

    @property
    def prompt_version(self) -> str:
        """The prompt's name and hash."""
        return self._prompt.version

    async def judge(self, turn: Turn) -> Judgement:
        """Judge one turn; each vote has `timeout_s` in all, and none waits for another.

        Raises:
            JudgeUnavailable: if no vote reached the endpoint.
            JudgeError: if the endpoint refused every vote.
        """
        started = time.monotonic()
        task = task_of(turn)
        messages = self._messages(turn)
        replies = await asyncio.gather(
            *(self._vote(messages) for _ in range(self._config.votes)), return_exceptions=True
        )
        votes = [reply for reply in replies if isinstance(reply, Vote)]
        lost = [reply for reply in replies if not isinstance(reply, Vote)]
        for error in lost:
            if not isinstance(error, _Refused | _Unreachable | TimeoutError):
                raise error
        if not votes:
            self._raise_for(lost)
        tally = aggregate(
            votes, task=task, threshold=self._config.vote_threshold, min_valid=self._config.min_valid_votes
        )
        score = None if tally.score is None else float(tally.score)
        return Judgement(
            turn_id=turn.turn_id,
            kind=self.kind,
            outcome=tally.outcome,
            score=score,
            hint=next(iter(tally.hints.accepted), None),
            alternatives=tally.hints.accepted[1:],
            prompt_version=self.prompt_version,
            latency_s=time.monotonic() - started,
            details={
                "by": "votes",
                "counts": {str(value): count for value, count in tally.counts.items()},
                "problems": tally.problems,
                "lost": len(lost),
                **({REFUSED: dict(tally.hints.refused)} if tally.hints.refused else {}),
            },
            created_at=time.time(),
        )

    def _messages(self, turn: Turn) -> tuple[Message, ...]:
        names = ", ".join(str(tool.get("function", tool).get("name", "?")) for tool in turn.request.tools)
        return self._prompt.messages(
            {
                "conversation": described(turn.request.messages, MAX_CONVERSATION_CHARS),
                "tools": defuse(head_tail(names, MAX_TOOLS_CHARS)) or "(none)",
                "output": defuse(head_tail(output_of(turn), MAX_PART_CHARS)),
                "next_state": described(turn.next_state or (), MAX_PART_CHARS),
            }
        )

    async def _vote(self, messages: Sequence[Message]) -> Vote:
        async with asyncio.timeout(self._config.timeout_s):
            for attempt in range(self._config.max_retries + 1):
                try:
                    return parse_vote(await self._ask(messages))
                except (_Unreachable, httpx.TransportError) as error:
                    if attempt == self._config.max_retries:
                        raise _Unreachable(type(error).__name__) from error
                pause = min(MAX_BACKOFF_S, BACKOFF_S * 2**attempt) * (0.5 + self._rng.random() / 2)
                await asyncio.sleep(pause)
        raise _Unreachable("no attempt was allowed")

    async def _ask(self, messages: Sequence[Message]) -> str:
        structured = self._structured
        body: dict[str, Any] = {
            "model": self._config.model,
            "messages": [dict(message) for message in messages],
            "temperature": self._config.temperature,
            "max_tokens": self._config.max_tokens,
            "seed": self._rng.randrange(2**31),
        }
        if structured:
            body["response_format"] = _SCHEMA
        response = await self._client.post("chat/completions", json=body)
        if response.status_code in _RETRIED:
            raise _Unreachable(f"status {response.status_code}")
        if response.status_code in {400, 422} and structured:
            if self._structured:
                log.warning("the judge's endpoint refuses structured output; reading \\boxed{} from now on")
            self._structured = False
            return await self._ask(messages)
        if response.status_code >= 400:
            raise _Refused(response.status_code)
        return reply_text(response)

    def _raise_for(self, lost: Sequence[BaseException]) -> None:
        refused = [error for error in lost if isinstance(error, _Refused)]
        if refused:
            raise JudgeError(f"status_{refused[0].status}", str(refused[0]))
        raise JudgeUnavailable("unreachable", "the judge's endpoint does not answer")

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def reply_text(response: httpx.Response) -> str:
    """The text of a chat completion; a body of another shape reads as an empty reply, which is no valid vote."""
    try:
        content = response.json()["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError):
        return ""
    return content if isinstance(content, str) else ""
