"""Carries the plan out: waits for the moment, freezes the process, notes what it was at, kills it, and watches.

A kill does not wait until the process before it has recovered: several may be away at once. The same process is
killed again as soon as it has come up.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.crash.deployment import Deployment, NotThere
from benchmarks.crash.ledger import Ledger
from benchmarks.crash.look import Look
from benchmarks.crash.plan import AT_WORK, LOOPS, Moment, Planned, Target, choose

log = logging.getLogger(__name__)

POLL_S = 0.05
AIM_POLL_S = 0.001
AIM_S = 20.0
"""How long a kill waits for the work that it is meant to hit; then it takes whatever there is."""
WATCH_S = 0.25
TRAINER_MOMENTS = frozenset({Moment.STEP, Moment.WRITING, Moment.WRITTEN, Moment.COMMITTED})


@dataclass(kw_only=True)
class Kill:
    """One kill as it was. `hit` names the work that the frozen process was at, None where it had none.

    `loading`: it had not come up yet. `worked_after_s` is None where another kill came in between.
    """

    target: Target
    at: float
    loading: bool
    hit: str | None
    worked_after_s: float | None = None
    interrupted: bool = False


class Killer:
    """Kills by plan, one at a time, and keeps book."""

    def __init__(
        self,
        deployment: Deployment,
        ledger: Ledger,
        look: Look,
        plan: dict[Target, list[Planned]],
        *,
        seed: int,
        progress: Callable[[Kill, int], None],
    ) -> None:
        self._deployment = deployment
        self._ledger = ledger
        self._look = look
        self._left = plan
        self._random = random.Random(f"killer/{seed}")
        self._progress = progress
        self._watched_at = 0.0
        self.kills: list[Kill] = []
        self.started_again = 0

    def run(self) -> None:
        """Carry the whole plan out.

        Raises:
            NotThere: if a process did not come back at all.
        """
        seen_at = time.monotonic()
        while any(self._left.values()):
            self.watch()
            self._revive()
            planned = self._next()
            if planned is not None and self._carry_out(planned):
                seen_at = time.monotonic()
                continue
            if time.monotonic() - seen_at > 180.0:
                raise NotThere(f"nothing left to kill came up: {self._deployment.last_words()}")
            time.sleep(POLL_S)

    def watch(self, *, at_once: bool = False) -> None:
        """Note which of the killed processes work again; not more often than is worth while, unless `at_once`."""
        if not at_once and time.time() - self._watched_at < WATCH_S:
            return
        self._watched_at = time.time()
        for kill in self.kills:
            if kill.worked_after_s is None and not kill.interrupted and self.works_since(kill.target, kill.at):
                kill.worked_after_s = time.time() - kill.at

    def works_since(self, target: Target, moment: float) -> bool:
        """Whether a target has done its work since; of a supervisor, whether all that it supervises has."""
        if target is Target.SUPERVISOR:
            return all(self.works_since(loop, moment) for loop in LOOPS)
        if target in {Target.GATEWAY, Target.ENGINE}:
            return self._ledger.answered_since(moment)
        return self._look.worked_since(target, moment)

    # --- one kill ------------------------------------------------------------------------------------------

    def _next(self) -> Planned | None:
        possible = [target for target, planned in self._left.items() if planned and self._may_be_killed(planned[0])]
        chosen = choose(self._random, {target: len(planned) for target, planned in self._left.items()}, possible)
        return None if chosen is None else self._left[chosen][0]

    def _may_be_killed(self, planned: Planned) -> bool:
        pid = self._deployment.pid(planned.target)
        if pid is None:
            return False
        if planned.moment is Moment.ANY:
            return True
        if self._loading(planned.target, pid):
            return False
        return planned.moment is not Moment.WORKED or self.works_since(
            planned.target, self._last_kill(planned.target)
        )

    def _last_kill(self, target: Target) -> float:
        """When a target was last ended by us, by itself or with its supervisor."""
        return max((kill.at for kill in self.kills if kill.target in {target, Target.SUPERVISOR}), default=0.0)

    def _loading(self, target: Target, pid: int) -> bool:
        if target is Target.SUPERVISOR:
            return not self._deployment.ready
        said = self._look.said().get(target)
        return said is None or said.pid != pid or said.loading

    def _carry_out(self, planned: Planned) -> bool:
        """Wait for the moment, and kill; False where the process was gone by then."""
        pid = self._catch(planned) if planned.moment in AT_WORK else self._freeze_after(planned)
        if pid is None:
            return False
        loading = self._loading(planned.target, pid)
        kill = Kill(
            target=planned.target, at=time.time(), loading=loading, hit=None if loading else self._at(planned.target)
        )
        self._deployment.kill(planned.target, pid)
        self._left[planned.target].pop(0)
        self._keep(kill)
        return True

    def _catch(self, planned: Planned) -> int | None:
        """Freeze a process at the work that the plan names: the pid. If it has gone on meanwhile, thaw it again."""
        deadline = time.monotonic() + AIM_S
        while time.monotonic() < deadline:
            if self._has_come(planned):
                time.sleep(planned.delay_s)
                pid = self._freeze(planned.target)
                if pid is None or self._has_come(planned):
                    return pid
                self._deployment.thaw(pid)
            self.watch()
            time.sleep(AIM_POLL_S)
        log.info("%s: %s did not come within %.0f s", planned.target, planned.moment, AIM_S)
        return self._freeze(planned.target)

    def _freeze_after(self, planned: Planned) -> int | None:
        until = time.monotonic() + planned.delay_s
        while time.monotonic() < until:
            self.watch()
            time.sleep(min(POLL_S, max(0.0, until - time.monotonic())))
        return self._freeze(planned.target)

    def _freeze(self, target: Target) -> int | None:
        pid = self._deployment.pid(target)
        return pid if pid is not None and self._deployment.freeze(pid) else None

    def _keep(self, kill: Kill) -> None:
        for earlier in self.kills:
            same = earlier.target is kill.target or kill.target is Target.SUPERVISOR
            if same and earlier.worked_after_s is None:
                earlier.interrupted = True
        self.kills.append(kill)
        self._progress(kill, sum(map(len, self._left.values())))

    def _has_come(self, planned: Planned) -> bool:
        if planned.moment in TRAINER_MOMENTS:
            return self._look.trainer_at() is planned.moment
        return self._at(planned.target) is not None

    def _at(self, target: Target) -> str | None:
        """What a kill of `target` would hit now."""
        match target:
            case Target.GATEWAY:
                return "in the middle of an answer" if self._ledger.asking else None
            case Target.ENGINE:
                return "in the middle of a stream" if self._ledger.streaming else None
            case Target.ROLLOUT:
                return "turns to move" if self._look.rollout_waiting() else None
            case Target.JUDGING:
                return "a claimed turn" if self._look.judging_now() else None
            case Target.TRAINING:
                return self._look.trainer_at()
            case Target.SUPERVISOR:
                found = {"a step": self._look.trainer_at(), "a stream": self._ledger.streaming}
                return " and ".join(name for name, there in found.items() if there) or None

    # --- a supervisor that ended by itself -----------------------------------------------------------------

    def _revive(self) -> None:
        """Start `up` again where it ended by itself, as systemd would; verification counts it as a fault."""
        if self._deployment.ended() is None:
            return
        self._ledger.fault(f"up ended by itself: {self._deployment.last_words()}")
        self.started_again += 1
        time.sleep(1.0)
        self._deployment.start()
