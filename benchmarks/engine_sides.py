"""Who generates in the engine benchmark: the embedded engine, Transformers' `generate`, and vLLM.

All get the same prompts as token ids, the same adapter, the same dtype, and draw from the whole distribution at
temperature 1, one log-probability a token. Nobody stops at an end token: every answer has as many tokens.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import GenerationConfig

from openclaw_rl.config import Config
from openclaw_rl.models import load_causal_lm, load_tokenizer
from openclaw_rl.policy_files import write_manifest
from openclaw_rl.serving.engines.embedded.adapters import AdapterPool
from openclaw_rl.serving.engines.embedded.jobs import GenerationJob, JobEvent
from openclaw_rl.serving.engines.embedded.runner import ModelRunner
from openclaw_rl.serving.engines.embedded.scheduler import Scheduler
from openclaw_rl.serving.engines.protocol import ChatRequest, EngineError, Finished, TokensDrawn
from openclaw_rl.types import SamplingParams

VERSION = 1
ANSWER_TIMEOUT_S = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What every side is given. `apart_s`: how long after each other requests arrive where they come one by one."""

    model: Path
    adapter: Path
    """A checkpoint's directory, with `adapter/` in it."""
    dtype: str
    threads: int
    prompt_tokens: int
    new_tokens: int
    apart_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """One measurement: seconds from the first request to the last token, and the log-probabilities of all tokens.

    `times`: when each token came, where the side says so.
    """

    seconds: float
    logprobs: tuple[tuple[float, ...], ...]
    times: tuple[tuple[float, ...], ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens drawn."""
        return sum(map(len, self.logprobs))

    @property
    def tokens_per_s(self) -> float:
        """Prompts are read within the time, and not counted."""
        return self.tokens / self.seconds


class Side(Protocol):
    """Somebody who generates."""

    def generate(self, prompts: Sequence[Sequence[int]]) -> Round:
        """Answer all prompts."""
        ...

    def close(self) -> None:
        """Let go of what is held."""
        ...


class Embedded:
    """The embedded engine without its HTTP: scheduler, slots, adapters, detokenizer, as its service uses them."""

    def __init__(self, task: Task, *, parallel: int) -> None:
        """`parallel`: as many requests are in a batch at most; `engine.prefill_chunk_tokens` is the default's."""
        model = load_causal_lm(task.model, task.dtype)
        self._task = task
        self._tokenizer = load_tokenizer(task.model)
        adapters = AdapterPool(model, 2)
        adapters.load(VERSION, task.adapter)
        self._scheduler = Scheduler(
            ModelRunner(model, adapters),
            adapters,
            parallel=parallel,
            max_queue=parallel,
            chunk_tokens=Config().engine.prefill_chunk_tokens,
            threads=task.threads,
        )
        self._scheduler.start()

    def generate(self, prompts: Sequence[Sequence[int]]) -> Round:
        """Submit them one after the other, `apart_s` apart, and wait for the last.

        Raises:
            EngineError: an answer failed.
            TimeoutError: the last took too long.
        """
        inboxes = [_Inbox() for _ in prompts]
        begin = time.perf_counter()
        for number, (prompt, inbox) in enumerate(zip(prompts, inboxes, strict=True)):
            _sleep_until(begin + number * self._task.apart_s)
            self._scheduler.submit(self._job(prompt, number, inbox.put))
        for inbox in inboxes:
            inbox.wait()
        seconds = time.perf_counter() - begin
        return Round(
            seconds=seconds,
            logprobs=tuple(tuple(inbox.logprobs) for inbox in inboxes),
            times=tuple(tuple(inbox.times) for inbox in inboxes),
        )

    def close(self) -> None:
        """End the compute thread."""
        self._scheduler.stop()

    def _job(self, prompt: Sequence[int], number: int, sink: Callable[[JobEvent], None]) -> GenerationJob:
        sampling = SamplingParams(temperature=1.0, max_tokens=self._task.new_tokens, seed=number)
        request = ChatRequest(request_id=str(number), messages=(), sampling=sampling, version=VERSION)
        return GenerationJob(
            request,
            prompt=prompt,
            max_tokens=self._task.new_tokens,
            end_tokens=frozenset(),
            tokenizer=self._tokenizer,
            sink=sink,
        )


class _Inbox:
    """What one answer says, from the compute thread."""

    def __init__(self) -> None:
        self.logprobs: list[float] = []
        self.times: list[float] = []
        self._error: EngineError | None = None
        self._over = threading.Event()

    def put(self, event: JobEvent) -> None:
        if isinstance(event, TokensDrawn):
            self.logprobs += [logprob for logprob in event.logprobs if logprob is not None]
            self.times.append(time.perf_counter())
        elif isinstance(event, EngineError):
            self._error = event
            self._over.set()
        elif isinstance(event, Finished):
            self._over.set()

    def wait(self) -> None:
        if not self._over.wait(ANSWER_TIMEOUT_S):
            raise TimeoutError("an answer of the embedded engine took too long")
        if self._error is not None:
            raise self._error


class Static:
    """Transformers' `generate`: all prompts at once as one batch, the adapter beside the weights (PEFT) or merged."""

    def __init__(self, task: Task, *, merged: bool = False) -> None:
        peft = PeftModel.from_pretrained(load_causal_lm(task.model, task.dtype), str(task.adapter / "adapter")).eval()
        self._model: Any = peft.merge_and_unload() if merged else peft
        self._threads = task.threads
        self._config = GenerationConfig(
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=task.new_tokens,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        self._model.generation_config = self._config  # its own would end answers at an end token

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Sequence[int]]) -> Round:
        """One call of `generate`, and the log-probabilities of what it drew. Prompts are of one length."""
        torch.set_num_threads(self._threads)
        begin = time.perf_counter()
        ids = torch.tensor([list(prompt) for prompt in prompts])
        output = self._model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=self._config
        )
        drawn = output.sequences[:, ids.shape[1] :]
        steps = [
            torch.log_softmax(logits.float(), dim=-1).gather(1, drawn[:, place, None])
            for place, logits in enumerate(output.logits)
        ]
        logprobs = torch.cat(steps, dim=1).tolist()
        seconds = time.perf_counter() - begin
        return Round(seconds=seconds, logprobs=tuple(map(tuple, logprobs)))

    def close(self) -> None:
        """Nothing is held but memory."""


def write_adapter(model: Path, target: Path) -> None:
    """An adapter of the shape that the trainer's default has, with random weights, as a checkpoint has it."""
    shape = Config().training.lora
    config = LoraConfig(
        r=shape.rank, lora_alpha=shape.alpha, target_modules=list(shape.target_modules), task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        peft = get_peft_model(load_causal_lm(model), config)
        for name, parameter in peft.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.01)
        peft.save_pretrained(str(target / "adapter"))
    write_manifest(target, {})


def prompts_of(model: Path, count: int, tokens: int, *, seed: int) -> list[list[int]]:
    """`count` random prompts of `tokens` tokens each: nothing begins alike, so that no side can reuse anything."""
    vocabulary = len(load_tokenizer(model))
    generator = torch.Generator().manual_seed(seed)
    prompts: list[list[int]] = torch.randint(100, vocabulary, (count, tokens), generator=generator).tolist()
    return prompts


def _sleep_until(moment: float) -> None:
    left = moment - time.perf_counter()
    if left > 0:
        time.sleep(left)
