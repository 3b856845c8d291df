"""What `status` says of the last step's version beside that it is there."""

from __future__ import annotations

from openclaw_rl.store import Store
from openclaw_rl.training.gate import far_shorter
from openclaw_rl.types import StepRecord, VersionState


def step_warning(store: Store, step: StepRecord | None) -> str | None:
    """What is odd about the version that a step made, by its figures; None where nothing is, or it never serves."""
    if step is None:
        return None
    shorter = far_shorter(step.metrics.get("probe_tokens"), step.metrics.get("probe_base_tokens"))
    version = None if shorter is None else store.versions.get(step.version)
    if version is None or version.state is VersionState.REJECTED:
        return None
    return f"{version.name} may answer too shortly: {shorter}"
