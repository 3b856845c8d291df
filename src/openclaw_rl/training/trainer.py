"""One optimiser step: samples in, changed weights and their measurements out.

The trainer knows no store, no engine and no clock but its own; `loop` gives it samples and keeps what it makes.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from openclaw_rl.config import TrainingConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.policy_files import WeightsKind
from openclaw_rl.training import gate
from openclaw_rl.training.advantages import Compared, reward_advantages, rewarded
from openclaw_rl.training.batch import TokenSequence, TrainBatch, Uses, build_batch
from openclaw_rl.training.batch_metrics import batch_metrics
from openclaw_rl.training.custom_loss import CustomLoss, LossFailed
from openclaw_rl.training.gatekeeper import Gatekeeper, KnownAnswer
from openclaw_rl.training.gradients import Gradients, NonFinite, Progress
from openclaw_rl.training.hint_choice import HintChooser
from openclaw_rl.training.learned import Learned, check_kind, learned_of, on_cpu
from openclaw_rl.training.line import Line
from openclaw_rl.training.meter import Meter
from openclaw_rl.training.moments import Adam, adam
from openclaw_rl.training.objective import StepContext
from openclaw_rl.training.own_steps import OwnSteps
from openclaw_rl.training.schedule import lr_share
from openclaw_rl.training.scorer import Mode, Scorer
from openclaw_rl.training.teacher import LiveTeacher, TeacherOf
from openclaw_rl.training.usable import Usable
from openclaw_rl.types import Sample

log = logging.getLogger(__name__)

TeacherPrompt = Callable[[Sample], Sequence[int]]
"""The token ids of a sample's prompt with its hint put in; asked only for samples that have one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutcome:
    """What a step did. `refused` says why its weights must never serve.

    With `weights_changed` they are there to be looked at, and whoever asked for the step puts better ones in their
    place; without, the step came to nothing and the trainer is as it was before.

    `teacher` is the record of who read the hints and which were taken (`hint_choice.Choice.record`).
    """

    step: int
    metrics: Mapping[str, float]
    seconds: float
    refused: str | None = None
    weights_changed: bool = True
    teacher: Mapping[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class TrainerState:
    """All that a step changes: what a checkpoint holds and what a refused step goes back to.

    `step` counts committed steps, and is also the version of the weights that they made. `averages`: the moving
    averages of rewards, by the key that each belongs to. `weights` are of `kind`: an adapter's, or a whole model's.
    `teacher` is what the teacher keeps of its own (an average), None where that is nothing. `gate` is what the
    gatekeeper remembers from step to step.
    """

    step: int
    averages: dict[str, float]
    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    rng: Tensor
    trained: tuple[str, ...] = field(default=())
    teacher: dict[str, Tensor] | None = None
    gate: dict[str, float] = field(default_factory=dict)
    kind: WeightsKind = WeightsKind.LORA


class Trainer:
    """A model that learns (its LoRA adapter, or all of it), its optimiser, and the step.

    It seeds and uses the process's global random numbers: a trainer is alone in its process.
    """

    def __init__(
        self,
        *,
        config: TrainingConfig,
        model: Any,
        base_path: str,
        teacher_prompt: TeacherPrompt,
        full_batch: int | None = None,
        teacher: TeacherOf = LiveTeacher,
        overlap_top_k: int = 0,
        reference: Any = None,
        tokenizer: Any = None,
        offload_to: Path | None = None,
    ) -> None:
        """With `config.use_lora` freeze `model`, a causal LM, and put a fresh adapter on it; else train all of it.

        `base_path`: where the model lies, recorded in the adapter. `full_batch`: how many samples `config.lr` is
        meant for; fewer take a proportionally smaller step, because Adam's does not shrink with its evidence.
        `teacher` makes who reads the hints; `overlap_top_k`: by how many likeliest tokens a hint is chosen among
        several, 0 for the first. Without LoRA, `reference` is a second copy of the base, and `tokenizer` what
        checkpoints hold beside the weights. `offload_to`: the directory for the optimiser's state on a CPU, where
        the configuration has it offloaded.

        Raises:
            ConfigError: the model has no such modules as the configuration's, or is one that the scorer cannot read.
        """
        self._full_batch = full_batch
        self.config = config
        self._teacher_prompt = teacher_prompt
        torch.manual_seed(config.seed)
        self.context_length = int(model.config.max_position_embeddings)
        self.vocabulary = int(model.get_input_embeddings().weight.shape[0])
        words = config.gate.without_room(self.context_length, "the model's max_position_embeddings")
        if words is not None:
            raise ConfigError(words)
        self.learned: Learned = learned_of(config, model, reference, base_path=base_path, tokenizer=tokenizer)
        self.model = self.learned.model
        self.scorer = Scorer(
            self.model, reference=self.learned.reference, gradient_checkpointing=config.gradient_checkpointing
        )
        path = config.custom_loss_function_path
        self._custom = None if path is None else CustomLoss.load(path, config.loss)
        self._gatekeeper = self._make_gatekeeper()
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        self._optimizer = self._make_optimizer(offload_to)
        self.teacher = teacher(self.scorer)
        self._chooser = self._make_chooser(overlap_top_k)
        self.usable = self._make_usable()
        self.step_number = 0
        self.averages: dict[str, float] = {}
        self.weights_version = 0
        self.own, self.line = OwnSteps(), Line()
        self._trained: tuple[str, ...] = ()
        self._first_rng = torch.get_rng_state()

    # --- its parts, from those before them -----------------------------------------------------------------

    def _make_gatekeeper(self) -> Gatekeeper:
        return Gatekeeper(
            scorer=self.scorer,
            told_prompt=self._teacher_prompt,
            config=self.config.gate,
            context_length=self.context_length,
            max_tokens=self.config.max_tokens_per_micro_batch,
        )

    def _make_optimizer(self, offload_to: Path | None) -> Adam:
        return adam(
            self._parameters,
            self._optimizer_settings(),
            device=self.scorer.device,
            offload=self.config.offload_optimizer_state,
            directory=offload_to,
        )

    def _make_chooser(self, overlap_top_k: int) -> HintChooser:
        return HintChooser(
            prompt=self._teacher_prompt,
            scorer=self.scorer,
            teacher=self.teacher,
            context_length=self.context_length,
            top_k=overlap_top_k,
            max_tokens=self.config.max_tokens_per_micro_batch,
        )

    def _make_usable(self) -> Usable:
        return Usable(
            uses=Uses.of(self.config.method, self.config.loss),
            loss=self.config.loss,
            context_length=self.context_length,
            vocabulary=self.vocabulary,
            hint_obstacle=self._chooser.obstacle,
        )

    # --- state ---------------------------------------------------------------------------------------------

    def state(self, *, copied: bool = True) -> TrainerState:
        """Everything a step changes, on the CPU wherever the model is.

        Not `copied`: what lies on the CPU already is the trainer's own, to be written before anything changes it.
        """
        return TrainerState(
            step=self.step_number,
            averages=dict(self.averages),
            kind=self.learned.kind,
            weights=on_cpu(self.learned.tensors(), copied=copied),
            optimizer=on_cpu(self._optimizer.state_dict(), copied=copied),
            rng=torch.get_rng_state(),
            trained=self._trained,
            teacher=self.teacher.state(),
            gate=self._gatekeeper.state(),
        )

    def fresh(self) -> TrainerState:
        """The state before the first step."""
        return TrainerState(
            step=0,
            averages={},
            kind=self.learned.kind,
            weights=self.learned.initial(),
            optimizer={"state": {}, "param_groups": self._optimizer.state_dict()["param_groups"]},
            rng=self._first_rng,
        )

    def rest(self) -> None:
        """Free what only a step needs: the gradients, and the optimiser's state where it is offloaded."""
        self._optimizer.zero_grad()
        self._optimizer.rest()

    def restore(self, state: TrainerState, *, weights_version: int | None = None) -> None:
        """Be what `state` was; the configuration's learning rate and decay stay in force.

        `weights_version`: the version that these weights are, where it is not the last step's.

        Raises:
            ConfigError: where the weights are of another kind or shape than the configuration's.
        """
        check_kind(self.config, state.kind)
        self.learned.put(state.weights)
        self._optimizer.load_state_dict(state.optimizer)
        for group in self._optimizer.param_groups:
            group.update(self._optimizer_settings())
        torch.set_rng_state(state.rng)
        self.step_number, self.averages, self._trained = state.step, dict(state.averages), state.trained
        self.weights_version = state.step if weights_version is None else weights_version
        self.teacher.restore(state.teacher, state.weights)
        self._gatekeeper.restore(state.gate)

    def _optimizer_settings(self) -> dict[str, Any]:
        config = self.config
        return {
            "lr": config.lr,
            "betas": (config.adam_beta1, config.adam_beta2),
            "weight_decay": config.weight_decay,
        }

    # --- the step ------------------------------------------------------------------------------------------

    @torch.enable_grad()
    def step(
        self,
        samples: Sequence[Sample],
        progress: Progress = lambda _: None,
        *,
        hints: Sequence[str] = (),
        known: Sequence[KnownAnswer] = (),
    ) -> StepOutcome:
        """Train on `samples` once, `epochs_per_batch` passes: all of it, or nothing. Then ask the gate.

        Gradients are kept, whatever code of the user's own has switched off in this process.
        `progress` is called with a sentence between any two forward or backward passes. `hints` and `known` are what
        the gate reads the new weights with (`gatekeeper`).
        """
        started = time.monotonic()
        # A single pass changes no weights before it is known that it came to something.
        before = self.state() if self.config.epochs_per_batch > 1 else None
        rng, number, basis = torch.get_rng_state(), self.step_number, self.weights_version
        scored_by = self.teacher.name(basis)
        choice = self._chooser.choose(samples, lambda: progress("choosing among hints"))
        batch = build_batch(choice.samples, self.config.method, self.config.loss, self.scorer.device)
        meter = Meter()
        refused: str | None
        try:
            context, self.averages = self.update(batch, meter, progress)
        except (NonFinite, LossFailed) as error:
            refused, broken = str(error), True
            log.warning("step %d came to nothing: %s", number + 1, refused)
            self._optimizer.zero_grad()
            torch.set_rng_state(rng)
            if before is not None:
                self.restore(before, weights_version=basis)
        else:
            broken = False
            refused = self._verdict(context, meter, progress, hints, known)
            self.step_number += 1
            self.weights_version = self.step_number
            if refused is None:
                self.teacher.follow(self.learned.tensors())
            self._trained = tuple(sample.turn_id for sample in samples)
        finally:
            self.scorer.release_head()
        return StepOutcome(
            step=number + 1,
            metrics={**meter.means(), **batch_metrics(batch, basis, self.line)},
            seconds=time.monotonic() - started,
            refused=refused,
            weights_changed=not broken,
            teacher=choice.record(scored_by),
        )

    def _verdict(
        self,
        context: StepContext,
        meter: Meter,
        progress: Progress,
        hints: Sequence[str],
        known: Sequence[KnownAnswer],
    ) -> str | None:
        """Why the gate refuses the new weights, None where it does not; what it read of them is in `meter`."""
        loss = meter.means().get("loss")
        readings = self._gatekeeper.read(context, loss=loss, hints=hints, known=known, progress=progress)
        for name, value in readings.metrics().items():
            meter.set(name, value)
        refused = gate.verdict(readings, self.config.gate)
        if refused is not None:
            words = gate.explained(readings, self.config.gate)
            log.warning("the gate refuses step %d: %s", self.step_number + 1, words)
        return refused

    def update(
        self, batch: TrainBatch, meter: Meter, progress: Progress = lambda _: None
    ) -> tuple[StepContext, dict[str, float]]:
        """Go over the batch `epochs_per_batch` times: gradients and an optimiser step each. Nothing is undone.

        Returns:
            What was read before the first gradient, and the moving averages of rewards after this batch.

        Raises:
            NonFinite: a loss or a gradient is no number; the parameters may have moved in an earlier pass.
        """
        self.scorer.hold_head()
        compared = self._compare_rewards(batch)
        if compared.expected:
            meter.set("baseline", statistics.fmean(compared.expected))
        context = self._context(batch, compared, progress)
        gradients = Gradients(
            scorer=self.scorer,
            config=self.config,
            custom=self._custom,
            version=self.weights_version,
            progress=progress,
        )
        for epoch in range(self.config.epochs_per_batch):
            self._optimizer.zero_grad()
            gradients.of_policy(context, meter, first=epoch == 0)
            if epoch == 0:  # a demonstration is shown once, however often the batch is gone over
                gradients.of_retries(batch, meter)
            self._apply(batch, meter)
        return context, compared.averages

    def _compare_rewards(self, batch: TrainBatch) -> Compared:
        used = batch.samples if bool(batch.reward_mask.any()) else ()
        return reward_advantages(rewarded(used, self.config.loss), self.averages, self.config.loss)

    def _context(self, batch: TrainBatch, compared: Compared, progress: Progress) -> StepContext:
        """Everything that is read before the first gradient: the reference, and the teacher under the hints."""
        size, budget = batch.targets.numel(), self.config.max_tokens_per_micro_batch
        uses_reference = self.config.loss.kl_coef > 0 or self._custom is not None

        def read(sequences: Sequence[TokenSequence], mode: Mode, row: Tensor = batch.targets) -> Tensor:
            return self.scorer.hidden_row(
                sequences, mode, length=len(row), max_tokens=budget, progress=lambda: progress(f"reading the {mode}")
            )

        return StepContext(
            batch=batch,
            reward_advantage=batch.spread_over_rewards(compared.advantages),
            reference=read(batch.acting, Mode.REFERENCE) if uses_reference else None,
            teacher=self.teacher.read(
                [self._hinted(batch, index) for index in batch.hinted],
                length=size,
                max_tokens=budget,
                progress=lambda: progress("reading the hints"),
            ),
            teacher_distribution=self.teacher.log_distribution,
            old=self.scorer.empty_row(size) if batch.acting else read(batch.demos, Mode.TEACHER, batch.demo_targets),
            mean_log_ratio=torch.zeros_like(batch.old),
            reference_distribution=self.scorer.reference_distribution,
            old_distribution=self.scorer.held_distribution,
        )

    def _hinted(self, batch: TrainBatch, index: int) -> TokenSequence:
        """The same response ids under the prompt that holds the hint."""
        own = batch.sequences[index]
        prompt = tuple(self._teacher_prompt(batch.samples[index]))
        return TokenSequence(prompt_ids=prompt, response_ids=own.response_ids, start=own.start)

    def _apply(self, batch: TrainBatch, meter: Meter) -> None:
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self.config.max_grad_norm))
        meter.set("grad_norm", norm)
        if not math.isfinite(norm):
            raise NonFinite("gradient_not_finite")
        share = 1.0 if self._full_batch is None else min(1.0, batch.signals / self._full_batch)
        lr = self.config.lr * lr_share(self.own.taken(self.step_number), self.config) * share
        meter.set("lr", lr)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
