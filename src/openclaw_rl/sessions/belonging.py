"""Whose an imported conversation will be: of which key, and in whose policy it is trained (`policies.per`).

By the gateway's own rule (`OwnerNames`), so that a client of that key, speaking for that user, goes on with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.serving.gateway.auth import LOCAL, Principal, key_id
from openclaw_rl.serving.gateway.errors import GatewayError
from openclaw_rl.serving.gateway.owners import OwnerNames
from openclaw_rl.store.archive import Row


@dataclass(frozen=True, kw_only=True, slots=True)
class Belonging:
    """A key by its id, and a user; "" is nobody in particular."""

    key_id: str
    owner: str


class Belongings:
    """Decides for one import: `key` (its id) and `user` are what was asked for, None where nothing was."""

    def __init__(self, config: Config, *, key: str | None, user: str | None) -> None:
        """Refuse what the configuration has no use for.

        Raises:
            ConfigError: naming what to say instead.
        """
        self._config = config
        self._key = key
        self._user = user
        self._names = {key_id(one.name): one.name for one in config.serving.api_keys}
        self._rule = OwnerNames(config.policies, list(self._names.values()))
        if user is not None and config.policies.per != "user":
            why = (
                "--key NAME says whose policy it will be" if config.policies.owned else "there is one policy for all"
            )
            raise ConfigError(f"--user has no meaning with policies.per = {config.policies.per}: {why}")

    def of_told(self) -> Belonging:
        """Of what others told, who say nothing of keys and users.

        Raises:
            ConfigError: it would be nobody's, and never trained.
        """
        key = self._key or LOCAL.key_id
        owner = self._owner(key, self._names.get(key, ""), self._user)
        if self._config.policies.owned and not owner:
            option = "--user NAME (or --key NAME)" if self._config.policies.per == "user" else "--key NAME"
            raise ConfigError(f"policies.per = {self._config.policies.per}: say whose it will be, with {option}")
        return Belonging(key_id=key, owner=owner)

    def of_exported(self, session: Row, *, at_home: bool) -> Belonging:
        """Of a full export: whose it was, as far as nothing else was asked for. `at_home`: exported here."""
        was_key, was_owner = str(session["key_id"]), str(session.get("owner", ""))
        key = self._key or was_key
        if at_home and (not self._config.policies.owned or (self._key is None and self._user is None)):
            return Belonging(key_id=key, owner=was_owner)
        spoke_for_itself = key_id(was_owner) == was_key  # a key's id is a hash of its name
        name = self._names.get(key, was_owner if spoke_for_itself and key == was_key else "")
        if self._config.policies.per == "user" and self._key is None and not was_owner:
            name = ""  # a key of that name is here too, but nobody said that it is the same one's
        user = self._user or ("" if spoke_for_itself else was_owner)
        return Belonging(key_id=key, owner=self._owner(key, name, user))

    def _owner(self, key: str, name: str, user: str | None) -> str:
        try:
            # Whoever imports has the run directory before them, and may speak for anybody.
            principal = Principal(key_id=key, train=True, admin=True, name=name)
            return self._rule.owner(principal, user=user)
        except GatewayError as error:
            raise ConfigError(f"--user: {error.message}") from error
