"""The tables of the durable record, in portable SQLAlchemy Core.

Token ids, log-probabilities and versions are packed little-endian arrays (`codec`); messages are JSON. Every
state column has a `_since` twin, so that a stalled row can say since when.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    false,
)

metadata = MetaData()

MAX_OWNER = 256
"""Characters of an owner's name."""
MAX_PLACE = 64
"""Characters of a place in a step."""


def _owner() -> Column[str]:
    """Whose policy a row belongs to: "" is the shared one, to which all of before there were owners belongs."""
    return Column("owner", String(MAX_OWNER), nullable=False, default="", server_default="")


identity = Table(  # one row: what tells this record from all others, whatever is deleted from it
    "identity",
    metadata,
    Column("store_id", String(32), primary_key=True),
)

sessions = Table(
    "sessions",
    metadata,
    Column("session_id", String(64), primary_key=True),
    Column("key_id", String(64), nullable=False),
    Column("client_session_id", Text),  # what the client called it, None where lineage found it
    Column("created_at", Float, nullable=False),
    Column("last_active_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("end_reason", String(32)),
    _owner(),
    Index("sessions_by_owner", "owner", "last_active_at"),
    Index("sessions_by_client_id", "key_id", "client_session_id"),
    Index("sessions_open", "ended_at", "last_active_at"),
)

requests = Table(
    "requests",
    metadata,
    Column("turn_id", String(64), primary_key=True),
    Column("session_id", ForeignKey("sessions.session_id"), nullable=False, index=True),
    Column("key_id", String(64), nullable=False),
    Column("parent_turn_id", String(64), index=True),
    Column("turn_type", String(8), nullable=False),
    Column("messages", JSON, nullable=False),
    Column("tools", JSON, nullable=False),
    Column("new_messages", JSON, nullable=False),
    Column("session_done", Boolean, nullable=False),
    Column("model", String(128), nullable=False),
    Column("ambiguous", Boolean, nullable=False),
    Column("brings_feedback", Boolean, nullable=False),  # rollout.next_state: it gives its parent a next state
    Column("retry_of", String(64), index=True),  # the attempt that this one repeats
    Column("sibling_of", String(64)),  # the latest other answer to the same messages
    Column("side_rule", String(64)),
    Column("body_hash", String(64)),  # of all messages: equal for retries and siblings
    Column("stem_hash", String(64)),  # of all messages but the question: equal for an edited question
    Column("session_hint", Text),  # what the client calls the conversation, not to be relied upon
    Column("idempotency_key", Text),
    Column("status", String(16), nullable=False, index=True),  # open | served | undelivered | failed | cancelled
    Column("error", Text),
    Column("created_at", Float, nullable=False, index=True),
    _owner(),
    Index("requests_by_body", "key_id", "body_hash"),
    Index("requests_by_stem", "session_id", "stem_hash"),
)

signals = Table(
    "signals",
    metadata,
    Column("signal_id", Integer, primary_key=True, autoincrement=True),
    Column("turn_id", ForeignKey("requests.turn_id"), nullable=False, index=True),  # the answer that it is about
    Column("kind", String(16), nullable=False),
    Column("by_turn_id", String(64)),
    Column("created_at", Float, nullable=False),
)

turns = Table(
    "turns",
    metadata,
    Column("turn_id", ForeignKey("requests.turn_id"), primary_key=True),
    Column("session_id", String(64), nullable=False, index=True),
    Column("key_id", String(64), nullable=False),
    Column("context_hash", String(64), nullable=False),
    Column("state", String(24), nullable=False),
    Column("state_since", Float, nullable=False),
    Column("reason", String(32)),
    Column("answer", JSON, nullable=False),
    Column("prompt_ids", LargeBinary, nullable=False),
    Column("response_ids", LargeBinary, nullable=False),
    Column("logprobs", LargeBinary, nullable=False),
    Column("versions", LargeBinary, nullable=False),
    Column("kept", LargeBinary),  # None where sampling was not truncated
    Column("chain_id", String(64)),  # the first turn of a chain whose prompts extend one another, token by token
    Column("extends_parent", Boolean),  # None without a parent
    Column("sampling", JSON, nullable=False),
    Column("finish_reason", String(16), nullable=False),
    Column("reconstructed", Boolean, nullable=False, default=False, server_default=false()),  # imported
    Column("next_state", JSON),
    Column("next_turn_id", String(64)),
    Column("served_at", Float, nullable=False),
    Column("judge_lease_until", Float),
    Column("judge_attempts", Integer, nullable=False, default=0),
    Column("feedback_seen", Integer),  # the newest given judgement that the rollout loop has acted on
    Index("turns_by_state", "state", "served_at"),
    Index("turns_by_reason", "reason"),
    Index("turns_by_context", "key_id", "context_hash"),
)

judgements = Table(
    "judgements",
    metadata,
    Column("judgement_id", Integer, primary_key=True, autoincrement=True),
    Column("turn_id", ForeignKey("turns.turn_id"), nullable=False, index=True),
    Column("kind", String(32), nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("score", Float),
    Column("hint", Text),
    Column("alternatives", JSON),  # further hint candidates; None in rows of before there were any
    Column("prompt_version", String(64), nullable=False),
    Column("latency_s", Float, nullable=False),
    Column("details", JSON, nullable=False),
    Column("created_at", Float, nullable=False),
    Index("judgements_by_kind", "kind", "turn_id"),
)

samples = Table(
    "samples",
    metadata,
    Column("turn_id", ForeignKey("turns.turn_id"), primary_key=True),
    Column("state", String(16), nullable=False),
    Column("state_since", Float, nullable=False),
    Column("reward", Float),
    Column("hint", Text),
    Column("alternatives", JSON),
    Column("retry_prompt_turn_id", String(64)),  # the first try, where this answer is the accepted retry
    Column("version", Integer),  # of its first token: what staleness is measured from; None: reconstructed
    Column("created_at", Float, nullable=False),
    Column("lease_until", Float),
    Column("step", Integer),
    _owner(),
    Index("samples_by_state", "state", "created_at"),
    Index("samples_by_owner", "state", "owner", "created_at"),
)

deaths = Table(  # of the trainer, in a step over this sample
    "deaths",
    metadata,
    Column("turn_id", ForeignKey("turns.turn_id"), primary_key=True),
    Column("place", String(MAX_PLACE), primary_key=True),  # what it was at
    Column("number", Integer, nullable=False),
    Column("alone", Boolean, nullable=False),  # whether the sample, or its group, was the whole batch at the last one
)

steps = Table(
    "steps",
    metadata,
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
    Column("sample_ids", JSON, nullable=False),
    Column("metrics", JSON, nullable=False),
    Column("checkpoint", Text, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("teacher", JSON),  # who read the hints, and which were taken
    Column("created_at", Float, nullable=False),
    _owner(),
    Index("steps_by_owner", "owner", "step"),
)

versions = Table(
    "versions",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("state", String(16), nullable=False),
    Column("state_since", Float, nullable=False),
    Column("path", Text),
    Column("step", Integer, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("reason", String(64)),  # why it was rejected, or taken out of service
    Column("basis", Integer),  # the version whose weights its step began with; None: not written down then
    Column("pinned_at", Float),  # None: newer versions may take its place; of the base: for the shared policy
    _owner(),
    Index("versions_by_owner", "owner", "state"),
)

base_pins = Table(  # owners who are kept at the base, which is everybody's and has one row for all
    "base_pins",
    metadata,
    Column("owner", String(MAX_OWNER), primary_key=True),
    Column("pinned_at", Float, nullable=False),
)

loops = Table(
    "loops",
    metadata,
    Column("loop", String(16), primary_key=True),
    Column("pid", Integer, nullable=False),
    Column("heartbeat_at", Float, nullable=False),
    Column("activity", Text, nullable=False),
    Column("waiting_for", Text),
    Column("since", Float, nullable=False),
    Column("details", JSON, nullable=False),
)

spans = Table(
    "spans",
    metadata,
    Column("span_id", Integer, primary_key=True, autoincrement=True),
    Column("name", String(32), nullable=False, index=True),  # training_step | publish
    Column("started_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("details", JSON, nullable=False),
)

rollouts = Table(  # made by the driver; its sessions are those of its key and owner that are called `session_name`
    "rollouts",
    metadata,
    Column("session_name", String(128), primary_key=True),
    Column("key_id", String(64)),  # None where it was made before this was written down, and got no session
    Column("group_id", String(64), nullable=False, index=True),
    Column("task_id", Text, nullable=False),
    Column("number", Integer, nullable=False),  # in its group
    Column("attempt", Integer, nullable=False),  # one more each time that the driver was killed in it
    Column("state", String(16), nullable=False),  # running | finished | failed
    Column("group_state", String(16), nullable=False, index=True),  # open | rewarded | released | dropped
    Column("judged", Boolean, nullable=False),  # whether its turns go before the judge
    Column("turn_ids", JSON, nullable=False),
    Column("reward", Float),  # on the scale of rollout.reward_range
    Column("ended", Text),  # why, as its generate function says
    Column("failure", String(64)),
    Column("started_at", Float, nullable=False),
    Column("ended_at", Float),
    _owner(),
)

recorded = Table(  # what the conversation records (records.enabled) hold already
    "recorded",
    metadata,
    Column("turn_id", ForeignKey("turns.turn_id"), primary_key=True),
    Column("judgement_id", Integer, nullable=False),  # the newest of the turn that has its line; 0: none yet
)

counters = Table(
    "counters",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", Integer, nullable=False),
)
