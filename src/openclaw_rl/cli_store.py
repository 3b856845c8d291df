"""Opening the record of a run directory from the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from openclaw_rl.config_sources import ConfigError
from openclaw_rl.supervision.state import read_state

if TYPE_CHECKING:
    from openclaw_rl.store import Store


@contextmanager
def store_of(run_dir: Path, path: Path) -> Iterator[Store]:
    """The store at `path`; its schema is upgraded only where no deployment of another version may be using it.

    Raises:
        ConfigError: it cannot be opened or used, in one line.
    """
    from sqlalchemy.exc import SQLAlchemyError

    from openclaw_rl.store import Store

    state = read_state(run_dir.expanduser())
    try:
        store = Store.open(path, migrate=state is None or not state.alive)
        try:
            yield store
        finally:
            store.close()
    except SQLAlchemyError as error:
        reason = getattr(error, "orig", None) or type(error).__name__
        raise ConfigError(f"the store {path} cannot be used: {reason}") from error
