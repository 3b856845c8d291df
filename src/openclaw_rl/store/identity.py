"""What tells one record from all others: a random id that it gets once, and keeps whatever is deleted from it."""

from __future__ import annotations

import uuid

from sqlalchemy import select

from openclaw_rl.store.database import Database
from openclaw_rl.store.schema import identity


class IdentityStore:
    """The record's own id. Checkpoints carry it, so that it can be told whose they are without what they trained."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def ensure(self) -> None:
        """Give the record an id where it has none: it is new, or from before there were ids."""
        query = select(identity.c.store_id)
        with self._database.read() as connection:  # so that a record that cannot be written now can be opened
            if connection.execute(query).first() is not None:
                return
        with self._database.write() as connection:
            if connection.execute(query).first() is None:
                connection.execute(identity.insert().values(store_id=uuid.uuid4().hex))

    def get(self) -> str:
        """The id; `Store.open` has given it one, unless it was told to change nothing."""
        with self._database.read() as connection:
            return str(connection.execute(select(identity.c.store_id)).scalar_one())
