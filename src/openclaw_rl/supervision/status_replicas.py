"""The part of `status` about the engine's replicas, as the gateway last said how they are. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from openclaw_rl.types import LoopStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaLine:
    """One replica: its address, its state in words, the requests that it answers, the versions that it has."""

    url: str
    state: str
    requests: int
    versions: tuple[int, ...]

    def words(self) -> str:
        """`http://127.0.0.1:4001  ready, 2 requests, base and policy-v3`."""
        names = ["base" if version == 0 else f"policy-v{version}" for version in self.versions]
        has = " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) or "no version"
        number = "1 request" if self.requests == 1 else f"{self.requests} requests"
        return f"{self.url}  {self.state}, {number}, {has}"


def replicas_of(gateway: LoopStatus | None) -> tuple[ReplicaLine, ...]:
    """The replicas in what the gateway last said; none where it said nothing of any."""
    said = [] if gateway is None else gateway.details.get("replicas") or []
    return tuple(
        ReplicaLine(
            url=str(one["url"]),
            state=str(one["state"]),
            requests=int(one["requests"]),
            versions=tuple(int(version) for version in one["versions"]),
        )
        for one in said
    )
