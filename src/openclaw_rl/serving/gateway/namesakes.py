"""Keys that are called like somebody for whom others have spoken: two people, perhaps, and one policy.

A key's name stands for whoever holds it, and no other key may use it as a user's (`owners`). What was said under that
name before there was such a key is another matter: the record knows names, not people, and goes on with that
policy for the key's holder. Nobody but a person can say whether the two are one.
"""

from __future__ import annotations

import logging

from openclaw_rl.config import Config
from openclaw_rl.serving.gateway.auth import LOCAL, key_id
from openclaw_rl.store import Store

logger = logging.getLogger(__name__)


def namesakes(store: Store, config: Config) -> tuple[str, ...]:
    """The names of keys that are also those of users of other keys, or of no key, with a policy for each.

    An admin's key may speak for any other, and is not counted; nor are conversations that were imported without one.
    """
    if not config.policies.owned:
        return ()
    keys = config.serving.api_keys
    admins = {LOCAL.key_id, *(key_id(key.name) for key in keys if key.admin)}

    def others(name: str) -> bool:
        by_others = store.sessions.spoken_for_by(name) - admins - {key_id(name)}
        return bool(by_others) or LOCAL.key_id in store.sessions.spoken_for_by(name, served=True)

    return tuple(key.name for key in keys if others(key.name))


def words(name: str) -> str:
    """What is odd about that name, and what can be done."""
    return (
        f"the API key {name} has the policy of a user {name} for whom others spoke; "
        "if they are two people, give the key another name (serving.api_keys)"
    )


def warn(store: Store, config: Config) -> None:
    """Say so in the log."""
    for name in namesakes(store, config):
        logger.warning("%s", words(name))
