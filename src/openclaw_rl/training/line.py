"""What a version was built on, back to the base: along that line it is counted how old a sample is.

Numbers of versions are no measure of age. Those that the gate or the engine refused, that a person went back past, or
that are other owners', took a number and never taught these weights anything: counted, they would make samples too
old that the version in service drew a minute ago.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openclaw_rl.store import Store
from openclaw_rl.types import BASE_VERSION, PolicyVersion, VersionState


def line_of(version: int, versions: Sequence[PolicyVersion], since: Mapping[int, float]) -> list[PolicyVersion]:
    """A version, what it was built on, and so on back to the base, which is not in it.

    Of a version of before that was written down it is the last one before it that was in service until it was made,
    or longer. `since`: since when each version has been in its state.
    """
    by_number = {one.version: one for one in versions if one.version != BASE_VERSION}
    line: list[PolicyVersion] = []
    number = version
    while number in by_number:
        own = by_number[number]
        line.append(own)
        older = (
            n
            for n, one in by_number.items()
            if n < number and (one.state is VersionState.SERVING or since[n] >= own.created_at)
        )
        number = max(older, default=BASE_VERSION) if own.basis is None else own.basis
    return line


def line_in_store(store: Store, owner: str, version: int) -> list[PolicyVersion]:
    """The line of one of an owner's versions, as the record has it now."""
    return line_of(version, store.versions.of(owner), store.versions.states_since())


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """The versions of a line, the first first; None: no number is missing between the base and the last one."""

    versions: tuple[int, ...] | None = None

    @classmethod
    def of(cls, line: Sequence[PolicyVersion]) -> Line:
        """From what `line_of` found."""
        numbers = tuple(one.version for one in reversed(line))
        return cls() if not numbers or len(numbers) == numbers[-1] else cls(versions=numbers)

    def and_then(self, version: int, now: int) -> Line:
        """With a version that was built on `now`, its last one."""
        if self.versions is None and version == now + 1:
            return self
        before = range(BASE_VERSION + 1, now + 1) if self.versions is None else self.versions
        return Line(versions=(*before, version))

    def age(self, drawn: int, now: int) -> int:
        """How many versions ago, where `now` is the last one, a sample was drawn by version `drawn`.

        By one that is not in the line (somebody went back from it), it counts what was built since.
        """
        if self.versions is None:
            return max(0, now - drawn)
        return len(self.versions) - bisect_right(self.versions, drawn)

    def oldest_allowed(self, now: int, staleness: int) -> int:
        """The oldest version whose samples are no more than `staleness` versions old; 0: all are recent enough."""
        if self.versions is None:
            return max(0, now - staleness)
        return self.versions[-1 - staleness] if len(self.versions) > staleness else BASE_VERSION
