"""What `status` says of the last step's version beside that it is there."""

from __future__ import annotations

from openclaw_rl.store import Store
from openclaw_rl.training.gate import PROBES_SKIPPED, far_shorter
from openclaw_rl.types import StepRecord, VersionState


def step_warning(store: Store, step: StepRecord | None) -> str | None:
    """What is odd about the version that a step made, by its figures; None where nothing is, or it never serves."""
    if step is None:
        return None
    odd = _odd(step)
    version = None if odd is None else store.versions.get(step.version)
    if version is None or version.state is VersionState.REJECTED:
        return None
    return f"{version.name} {odd}"


def _odd(step: StepRecord) -> str | None:
    if step.metrics.get(PROBES_SKIPPED):
        return "was not heard by the gate: no prompt of its batch left room for a probe answer"
    shorter = far_shorter(step.metrics.get("probe_tokens"), step.metrics.get("probe_base_tokens"))
    return None if shorter is None else f"may answer too shortly: {shorter}"
