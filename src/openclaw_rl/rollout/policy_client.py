"""The driver's client of the gateway: chats of a rollout, each in its session, and the rewards that they get.

It is a client like any other, so that what it asks is recorded exactly as everybody's requests are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import httpx

from openclaw_rl.rollout.extension_contracts import Answer, PolicyRefused
from openclaw_rl.types import Message

logger = logging.getLogger(__name__)

RETRY_STATUSES = frozenset({408, 409, 425, 429, 502, 503, 504})
MESSAGE_FIELDS = ("role", "content", "tool_calls")
"""What of an answer goes back into the conversation."""
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
SHORT_TIMEOUT_S = 30.0
"""For what is no generation: rewards, the end of a session."""


class Gateway:
    """The gateway's API as the driver uses it; one for its life."""

    def __init__(self, url: str, *, key: str | None, model: str, answer_timeout_s: float) -> None:
        """`url` ends in /v1; without a `key` none is sent."""
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        # The gateway is on this machine, behind no proxy; a certificate store takes longer to load than to answer.
        self._http = httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, verify=False)
        self._model = model
        self._answer_timeout_s = answer_timeout_s
        self.waiting_for: str | None = None
        """What the last request met that was not answered; None once one is."""

    def session(self, session_id: str) -> PolicySession:
        """The policy as the rollout of this name sees it."""
        return PolicySession(self, session_id)

    async def chat(self, session_id: str, body: Mapping[str, Any], *, idempotency_key: str) -> httpx.Response:
        """One answer, tried until there is one or the caller gives up.

        Raises:
            PolicyRefused: the gateway will not answer it.
        """
        headers = {"X-Session-Id": session_id, "X-Turn-Type": "main", "Idempotency-Key": idempotency_key}
        return await self._post(
            "/chat/completions", {"model": self._model, **body}, headers=headers, timeout_s=self._answer_timeout_s
        )

    async def reward(self, session_id: str, turn_id: str, score: float, score_range: tuple[float, float]) -> bool:
        """Give one turn its reward; False where the record does not hold it.

        Saying it again changes nothing.

        Raises:
            PolicyRefused: for another reason.
        """
        body = {"turn_id": turn_id, "score": score, "range": list(score_range), "source": "rollout"}
        return await self._tell(f"/sessions/{quote(session_id, safe='')}/reward", body)

    async def end_session(self, session_id: str) -> bool:
        """Say that nothing follows; False where the record does not hold the session."""
        return await self._tell(f"/sessions/{quote(session_id, safe='')}/end", {})

    async def _tell(self, path: str, body: Mapping[str, Any]) -> bool:
        try:
            await self._post(path, body, headers={}, timeout_s=SHORT_TIMEOUT_S)
        except PolicyRefused as error:
            if error.code in {"turn_not_found", "session_not_found"}:
                return False
            raise
        return True

    async def _post(
        self, path: str, body: Mapping[str, Any], *, headers: Mapping[str, str], timeout_s: float
    ) -> httpx.Response:
        """Post until it is answered; pauses double, and are what the gateway asks for where it does."""
        attempt = 0
        while True:
            asked_s = 0.0
            try:
                counted = {"X-Stainless-Retry-Count": str(attempt), **headers}
                answer = await self._http.post(path, json=body, headers=counted, timeout=timeout_s)
            except httpx.TransportError as error:
                problem = f"the gateway to answer ({type(error).__name__})"
            else:
                if answer.is_success:
                    self.waiting_for = None
                    return answer
                if answer.status_code not in RETRY_STATUSES:
                    raise _refusal(answer)
                problem = f"the gateway ({answer.status_code})"
                asked_s = _seconds(answer.headers.get("retry-after"))
            self.waiting_for = problem
            await asyncio.sleep(min(LONGEST_PAUSE_S, max(asked_s, FIRST_PAUSE_S * 2 ** min(attempt, 16))))
            attempt += 1

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()


class PolicySession:
    """Implements `Policy`: one rollout's view. `turn_ids` are its answers so far, in order."""

    def __init__(self, gateway: Gateway, session_id: str) -> None:
        self._gateway = gateway
        self._session_id = session_id
        self._asked = 0
        self.turn_ids: list[str] = []

    @property
    def session_id(self) -> str:
        """See `Policy`."""
        return self._session_id

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        temperature: float = 1.0,
        max_tokens: int | None = None,
        seed: int | None = None,
    ) -> Answer:
        """See `Policy`."""
        given = {"tools": list(tools) or None, "max_tokens": max_tokens, "seed": seed}
        body = {"messages": list(messages), "temperature": temperature}
        body |= {name: value for name, value in given.items() if value is not None}
        self._asked += 1
        answer = await self._gateway.chat(self._session_id, body, idempotency_key=f"{self._session_id}-{self._asked}")
        turn_id = answer.headers["x-turn-id"]
        self.turn_ids.append(turn_id)
        whole = answer.json()
        choice, usage = whole["choices"][0], whole["usage"]
        message = choice["message"]
        return Answer(
            turn_id=turn_id,
            message={name: message[name] for name in MESSAGE_FIELDS if name in message},
            finish_reason=choice["finish_reason"],
            version=int(answer.headers["x-policy-version"]),
            prompt_tokens=usage["prompt_tokens"],
            completion_tokens=usage["completion_tokens"],
        )


def _refusal(answer: httpx.Response) -> PolicyRefused:
    try:
        error = answer.json()["error"]
        return PolicyRefused(str(error["code"]), f"the gateway refused ({answer.status_code}): {error['message']}")
    except (ValueError, KeyError, TypeError):
        return PolicyRefused(f"http_{answer.status_code}", f"the gateway answered {answer.status_code}")


def _seconds(text: str | None) -> float:
    return float(text) if text is not None and text.isascii() and text.isdigit() else 0.0
