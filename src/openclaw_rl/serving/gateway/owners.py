"""Whose policy answers a request, and that the engine has it (`policies.per`).

With a policy for each owner there are more versions than an engine keeps loaded. So the version is looked up for each
request, and loaded before the engine is asked where it is not: of those that nobody uses, the engine lets go of the
one that was used longest ago. Where all are in use the request waits for a place, in the order of arrival among those
that wait for one, and in the end is told to come again; whose version is loaded is answered meanwhile. Where the
owner's version cannot be loaded at all (its files are damaged), the newest before it that can stands in, or the base;
that answer is not trained. Nobody is ever answered by another owner's version, not even asked for by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import unicodedata
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, replace

from openclaw_rl.config_policies import PoliciesConfig
from openclaw_rl.serving.engines.protocol import (
    Engine,
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    InvalidEngineRequest,
    UnknownVersion,
    UnreadableVersion,
)
from openclaw_rl.serving.gateway.auth import Principal
from openclaw_rl.serving.gateway.errors import GatewayError, bad_request, unavailable, unknown_model
from openclaw_rl.serving.gateway.versions import VersionKeeper, number_of, version_name
from openclaw_rl.store import Store
from openclaw_rl.store.outage import STORE_ERRORS
from openclaw_rl.types import BASE_VERSION, ExclusionReason, PolicyVersion, VersionState

logger = logging.getLogger(__name__)

HELD_S = 1.0
"""How long others' loading waits for the engine to take a request whose version was just loaded: an engine that says
nothing before it has read the prompt keeps nobody waiting. Should the version be let go of after all, it is loaded
again."""
LOAD_RETRY_S = 0.05
LONGEST_LOAD_RETRY_S = 1.0
"""Pauses between tries for a place double from the one to the other."""
REFUSED_S = 30.0
"""How long a version that the engine has refused is not tried again: reading damaged files takes a while."""
STAND_INS = 3
"""How many earlier versions are tried."""
REMEMBERED = 4096
"""Owners whose version is remembered for when the record cannot be read."""
MAX_USER = 256
"""Characters of a user's name."""
_UNPRINTABLE = frozenset({"Cc", "Cs"})
_ASKED_FOR = frozenset({VersionState.SERVING, VersionState.RETIRED})


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """Which version answers. `excluded`: why its answer is not to be trained, where that is known by now."""

    version: int
    excluded: ExclusionReason | None = None


class OwnerNames:
    """From who asks to whose policy it is."""

    def __init__(self, policies: PoliciesConfig, key_names: Collection[str]) -> None:
        self._per = policies.per
        self._key_names = frozenset(key_names)

    def owner(self, principal: Principal, *, user: str | None = None, header: str | None = None) -> str:
        """The owner's name; "" is nobody in particular: the shared policy, or the base where there is none.

        Args:
            principal: whose key it is.
            user: the body's `user`, a text.
            header: `X-User-Id` as it came, latin-1 for the bytes of UTF-8.

        Raises:
            GatewayError: 400 or 403 naming the field.
        """
        if self._per == "none":
            return ""
        if self._per == "key":
            return principal.name
        if user:
            return self._allowed(_checked(user, "user"), "user", principal)
        if header and header.strip(" \t"):  # blanks around a header's value are none of it (RFC 9110)
            return self._allowed(_checked(_utf8(header.strip(" \t")), "X-User-Id"), "X-User-Id", principal)
        return principal.name

    def _allowed(self, name: str, field: str, principal: Principal) -> str:
        """A key's name stands for whoever holds that key; no other key may speak for it."""
        if name in self._key_names and name != principal.name and not principal.admin:
            raise GatewayError(403, f"{field} is the name of another API key.", code="user_not_allowed", param=field)
        return name


def _utf8(header: str) -> str:
    try:
        return header.encode("latin-1").decode("utf-8")
    except UnicodeDecodeError:
        raise bad_request("X-User-Id", "X-User-Id must be UTF-8.") from None


def _checked(name: str, field: str) -> str:
    if len(name) > MAX_USER:
        raise bad_request(field, f"{field} must have at most {MAX_USER} characters.")
    if any(unicodedata.category(character) in _UNPRINTABLE for character in name):
        raise bad_request(field, f"{field} must not contain control characters.")
    return name


class Router:
    """Finds the version for a request; one for the life of the gateway, touched by the event loop only."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        keeper: VersionKeeper,
        policies: PoliciesConfig,
        *,
        served_name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._engine = engine
        self._keeper = keeper
        self._owned = policies.owned
        self._served_name = served_name
        self._clock = clock
        self._loading = asyncio.Lock()
        self._refused: dict[int, float] = {}  # until when it is not tried again
        self._remembered: OrderedDict[str, PolicyVersion] = OrderedDict()

    @contextlib.asynccontextmanager
    async def routed(self, model: str, owner: str, principal: Principal, *, deadline: float) -> AsyncIterator[Route]:
        """The version that answers `model` for `owner`, loaded; leave once the engine has taken the request.

        Until then nobody else's version is loaded in its place.

        Raises:
            GatewayError: 503 where the engine is not ready, or has no place for it, by `deadline` (by the clock); 404
                where there is no such version, or it is not this owner's.
        """
        if not self._owned:
            yield Route(version=await self._keeper.route(model, deadline=deadline))
            return
        await self._keeper.route("base", deadline=deadline)  # the engine is there
        version, excluded = await self._choose(model, owner, admin=principal.admin)
        async with self._held(version, deadline, any_of_owner=model == self._served_name) as held:
            if held != version.version:
                excluded = ExclusionReason.NOT_FROM_POLICY
            yield Route(version=held, excluded=excluded)

    def pins(self, model: str) -> bool:
        """Whether this very version has to answer: one that was asked for by name, or one of somebody's policy."""
        return self._owned or not self._keeper.is_served_name(model)

    def answered(self, route: Route, version: int) -> Route:
        """What `route` turned out to be: an engine of several replicas may answer with the version before.

        Raises:
            EngineError: it is another owner's, or anyway not the one that was asked for.
        """
        if self._owned and version != route.version:
            raise EngineError(f"{version_name(version)} answered in place of {version_name(route.version)}")
        return replace(route, version=version)

    def lost(self, model: str, route: Route, error: EngineError) -> bool:
        """The engine did not take a request that was routed: whether another try may help."""
        if isinstance(error, UnknownVersion):
            if self._owned and route.version != BASE_VERSION:
                self._keeper.forget(route.version)  # another's was loaded in its place
                return True
            if not self._keeper.is_policy(model, route.version):
                return False
        self._keeper.suspect(f"the engine was lost ({error.code})")
        return True

    def exclusion(self, model: str, route: Route) -> ExclusionReason | None:
        """Why the answer is not to be trained: nobody's policy gave it."""
        if self._owned:
            return route.excluded
        return None if self._keeper.is_policy(model, route.version) else ExclusionReason.NOT_FROM_POLICY

    async def model_names(self, owner: str, principal: Principal) -> list[str]:
        """The names that this owner may ask for now."""
        if not self._owned or principal.admin:
            return self._keeper.model_names(everybody=True)
        names = self._keeper.model_names()
        own = await self._serving(owner)
        return names if own.version == BASE_VERSION else [*names, own.name]

    async def check_model(self, name: str, owner: str, principal: Principal) -> None:
        """Return if this owner may ask for `name` now, listed or (one that served before, and is loaded again) not.

        Raises:
            GatewayError: 404.
        """
        if self._owned:
            await self._choose(name, owner, admin=principal.admin)
        elif name not in (names := self._keeper.model_names()):
            raise unknown_model(name, ", ".join(names))

    # --- which version -------------------------------------------------------------------------------------

    async def _choose(self, model: str, owner: str, *, admin: bool) -> tuple[PolicyVersion, ExclusionReason | None]:
        serving = await self._serving(owner)
        if model == self._served_name:
            return serving, None if owner else ExclusionReason.NO_OWNER
        self._keeper.check_name(model)
        number = number_of(model)
        if number == serving.version and number != BASE_VERSION:
            return serving, None
        named = await self._get(number)
        known = named is not None and (number == BASE_VERSION or named.state in _ASKED_FOR)
        if named is None or not known or not (number == BASE_VERSION or admin or named.owner == owner):
            raise unknown_model(model, ", ".join(self._keeper.model_names()))
        return named, ExclusionReason.NOT_FROM_POLICY

    async def _serving(self, owner: str) -> PolicyVersion:
        """The owner's version in service, as the record says; the last known where it cannot be read."""
        if not owner:
            return await self._get(BASE_VERSION) or _no_record()
        try:
            version = await asyncio.to_thread(self._store.versions.serving, owner)
        except STORE_ERRORS as error:
            logger.warning("the record cannot say which version serves an owner (%s)", type(error).__name__)
            return self._remembered.get(owner) or _no_record()
        self._remembered[owner] = version
        self._remembered.move_to_end(owner)
        if len(self._remembered) > REMEMBERED:
            self._remembered.popitem(last=False)
        return version

    async def _get(self, number: int) -> PolicyVersion | None:
        if number == BASE_VERSION and self._keeper.serving is not None:
            return self._keeper.serving  # read at the start, and never another
        try:
            return await asyncio.to_thread(self._store.versions.get, number)
        except STORE_ERRORS:
            return _no_record()

    # --- that it is loaded ---------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _held(self, version: PolicyVersion, deadline: float, *, any_of_owner: bool) -> AsyncIterator[int]:
        """That version, or what stands in for it, loaded, for the time of a block.

        `any_of_owner`: the owner's policy was asked for, not this version by its name, for which nothing stands in.
        """
        if version.version in self._keeper.loaded:
            yield version.version
            return
        if not await self._my_turn(version.version, deadline):
            yield version.version
            return
        with contextlib.ExitStack() as held:
            held.callback(self._loading.release)
            number = await self._loadable(version, deadline, any_of_owner)
            timer = asyncio.get_running_loop().call_later(HELD_S, held.close)
            held.callback(timer.cancel)
            yield number

    async def _my_turn(self, number: int, deadline: float) -> bool:
        """Wait to load, in the order of arrival: True with the lock; False where that version was loaded meanwhile.

        Raises:
            GatewayError: 503, neither by `deadline`.
        """
        turn = asyncio.create_task(self._loading.acquire())
        there = asyncio.create_task(self._keeper.until_loaded(number))
        taken = False
        try:
            left = max(0.0, deadline - self._clock())
            done, _ = await asyncio.wait({turn, there}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise unavailable("Other policies are being loaded; try again shortly.")
            taken = turn in done
            return taken
        finally:
            there.cancel()
            if not turn.done():
                turn.cancel()
            elif not taken:  # it came in the moment in which we were given up
                self._loading.release()

    async def _loadable(self, version: PolicyVersion, deadline: float, any_of_owner: bool) -> int:
        """The number of the version that is loaded in the end."""
        if await self._has(version, deadline):
            return version.version
        if not any_of_owner:
            raise unavailable(f"{version_name(version.version)} cannot be loaded now.")
        for earlier in await self._stand_ins(version):
            if await self._has(earlier, deadline):
                return earlier.version
        return BASE_VERSION  # without it nothing is routed at all

    async def _stand_ins(self, version: PolicyVersion) -> list[PolicyVersion]:
        """The versions that served this owner before, the last first; none that was taken out of service."""
        try:
            own = await asyncio.to_thread(self._store.versions.of, version.owner)
        except STORE_ERRORS:
            return []
        retired = [
            one
            for one in own
            if one.state is VersionState.RETIRED and one.reason is None and one.version != BASE_VERSION
        ]
        return sorted(retired, key=lambda one: one.version, reverse=True)[:STAND_INS]

    async def _has(self, version: PolicyVersion, deadline: float) -> bool:
        """Whether the engine has it, loaded now if need be; False where it cannot be loaded at all.

        Raises:
            GatewayError: 503, it cannot be loaded now.
        """
        number = version.version
        if number in self._keeper.loaded:
            return True
        if self._clock() < self._refused.get(number, 0.0):
            return False
        try:
            await self._load(version, deadline)
        except (InvalidEngineRequest, UnreadableVersion) as error:
            logger.error("the engine refuses %s (%s): %s", version_name(number), error.code, error)
            self._refused[number] = self._clock() + REFUSED_S
            return False
        self._refused.pop(number, None)
        return True

    async def _load(self, version: PolicyVersion, deadline: float) -> None:
        problem, pause_s = "the engine has no answer", LOAD_RETRY_S
        name = version_name(version.version)
        try:
            async with asyncio.timeout(max(0.0, deadline - self._clock())):
                while True:
                    try:
                        await self._engine.load_version(version)
                    except EngineOverloaded:
                        problem = "all policies that the engine can hold are in use"
                    except EngineUnavailable as error:
                        problem = f"the engine cannot be reached ({error.code})"
                    else:
                        self._keeper.note_loaded(version.version)
                        return
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, LONGEST_LOAD_RETRY_S)
        except TimeoutError:
            raise unavailable(f"{name} is not loaded: {problem}; try again shortly.") from None
        except (InvalidEngineRequest, UnreadableVersion):
            raise
        except EngineError as error:
            logger.error("the engine cannot load %s (%s)", name, error.code)
            raise unavailable(f"{name} cannot be loaded now.") from error


def _no_record() -> PolicyVersion:
    raise unavailable("The record cannot be read now; try again shortly.")
