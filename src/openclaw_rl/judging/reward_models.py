"""`judge.kind = "custom"` and `"reward_model"`: one number for a turn, from the user's own code or from a classifier.

The number may be on any scale, within a declared range that is mapped to -1 and 1. A number outside it is a failure
with a name, not a score: clipping would hide that the range is wrong. None says that there is no score.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.extensions import load_attribute, one_process, origin
from openclaw_rl.judging.base import JudgeError, JudgeMisconfigured, JudgeUnavailable, output_of, task_of
from openclaw_rl.judging.head import digest
from openclaw_rl.judging.hints import corrective_part
from openclaw_rl.judging.llm import described
from openclaw_rl.types import Judgement, JudgementOutcome, Turn

log = logging.getLogger(__name__)

OPTION = "judge.custom_rm_path"
FACTORY = "get_reward_model"
DEFAULT_RANGE = (-1.0, 1.0)

Score = Callable[[str, str, str], "float | Awaitable[float | None] | None"]
"""`score(prompt, response, next_state)`: the conversation before the answer, the answer, and what followed."""


def load_custom(config: Config) -> tuple[Score, str]:
    """The score function that `judge.custom_rm_path` names, and its version.

    It names the function itself, or `get_reward_model`, which is called with the configuration and returns an object
    with a method `score`.

    Raises:
        JudgeMisconfigured: if it cannot be loaded, or cannot be called with prompt, response and next state.
    """
    path = config.judge.custom_rm_path
    assert path is not None  # the configuration sees to that
    try:
        with one_process():
            found = load_attribute(path, option=OPTION)
            if path.rpartition(":")[2] == FACTORY:
                found = found(config)
    except ConfigError:
        raise
    except BaseException as error:  # whatever the user raises, it is told at the start
        raise JudgeMisconfigured(f"{OPTION} = {path!r}: {origin(error)}: {error}") from error
    if inspect.isclass(found):
        raise JudgeMisconfigured(f"{OPTION} = {path!r} is a class: name a function {FACTORY}(config) that makes one")
    score = getattr(found, "score", found)
    if not callable(score):
        raise JudgeMisconfigured(f"{OPTION} = {path!r} can neither be called nor has it a method score")
    _check_signature(score, path)
    return score, f"custom@{_source_digest(score, path)}"


def _check_signature(score: Score, path: str) -> None:
    try:
        signature = inspect.signature(score)
    except ValueError:  # a built-in function, which says nothing of its parameters
        return
    try:
        signature.bind("prompt", "response", "next_state")
    except TypeError as error:
        raise JudgeMisconfigured(
            f"{OPTION} = {path!r} must take (prompt, response, next_state), not {signature}: {error}"
        ) from error


def _source_digest(score: Score, path: str) -> str:
    """A hash of the file that the function stands in, or of its name where it has none."""
    try:
        file = inspect.getsourcefile(inspect.unwrap(score))
    except TypeError:
        file = None
    return digest(Path(file).read_bytes() if file is not None else path)


class RewardJudge:
    """Turns the number of a reward model into a judgement.

    A reward model writes no hint: as for other judges that cannot write, the user's own correction is the hint.
    """

    def __init__(
        self, score: Score, *, kind: str, version: str, score_range: tuple[float, float], workers: int
    ) -> None:
        """`workers`: how many calls of a function that is not async may run at once, each on a thread of its own."""
        self.kind = kind
        self.prompt_version = version
        self._score = score
        self._low, self._high = score_range
        self._threads = DaemonThreads(workers)

    async def judge(self, turn: Turn) -> Judgement:
        """Ask the model, map its number.

        Raises:
            JudgeError: it raised, or its answer is no number within the range.
            JudgeUnavailable: it could not reach what it needs, or hangs.
        """
        started = time.monotonic()
        next_state = turn.next_state or ()
        raw = await self._ask(described(turn.request.messages), output_of(turn), described(next_state))
        score = None if raw is None else self._mapped(raw)
        corrective = corrective_part(next_state, task=task_of(turn)) if score is not None and score < 0 else None
        return Judgement(
            turn_id=turn.turn_id,
            kind=self.kind,
            outcome=JudgementOutcome.ABSENT if score is None else JudgementOutcome.SCORED,
            score=score,
            hint=corrective,
            prompt_version=self.prompt_version,
            latency_s=time.monotonic() - started,
            details={"by": self.kind, "raw": raw, "range": [self._low, self._high]},
            created_at=time.time(),
        )

    async def _ask(self, prompt: str, response: str, next_state: str) -> Any:
        try:
            if inspect.iscoroutinefunction(self._score):
                return await self._score(prompt, response, next_state)
            answer = await self._threads.run(self._score, prompt, response, next_state)
            return await answer if inspect.isawaitable(answer) else answer
        except JudgeError:
            raise
        except (ConnectionError, TimeoutError) as error:
            raise JudgeUnavailable("reward_model_connection", f"the reward model: {type(error).__name__}") from error
        except Exception as error:  # the user's own code may raise anything; it is counted, told, and is no score
            log.error("the reward model raised %s", origin(error))
            raise JudgeError("reward_model_raised", f"the reward model raised {origin(error)}") from error

    def _mapped(self, raw: Any) -> float:
        if isinstance(raw, bool) or not isinstance(raw, int | float):
            raise JudgeError("not_a_number", f"the reward model returned {type(raw).__name__}, not a float or None")
        if not math.isfinite(raw):
            raise JudgeError("not_finite", f"the reward model returned {raw}")
        if not self._low <= raw <= self._high:
            raise JudgeError("out_of_range", f"{raw:g} is outside judge.score_range {self._low:g},{self._high:g}")
        return 2.0 * (raw - self._low) / (self._high - self._low) - 1.0

    async def close(self) -> None:
        """Nothing is held open; a thread that hangs ends with the process."""


class DaemonThreads:
    """Runs functions on threads that nobody waits for at the end: one that hangs must not keep the process alive."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._active = 0
        self._lock = threading.Lock()

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function returns or raises.

        Raises:
            JudgeUnavailable: if earlier calls, given up by their callers, still hold every thread.
        """
        with self._lock:
            if self._active >= self._limit:
                raise JudgeUnavailable("reward_model_hangs", f"{self._active} calls of the reward model hang")
            self._active += 1
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def deliver(result: Any, error: BaseException | None) -> None:
            if not future.done():
                future.set_result((result, error))

        def work() -> None:
            result, failure = None, None
            try:
                result = function(*arguments)
            except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
                failure = error
            with self._lock:
                self._active -= 1
            if not loop.is_closed():
                loop.call_soon_threadsafe(deliver, result, failure)

        threading.Thread(target=work, daemon=True, name="reward model").start()
        result, failure = await future
        if failure is not None:
            raise failure
        return result
