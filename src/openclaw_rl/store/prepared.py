"""Statements that are compiled once and run at the driver.

The gateway runs a dozen statements for a turn while its client waits. SQLAlchemy builds and looks up a statement in
ten times the time that SQLite needs to run it; these are built with it, so that they stay portable, but only once.
Values go to the driver as they are: JSON as text (`fast_json`), enums by value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.base import Executable
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ClauseElement


class Prepared:
    """One statement; its parameters are its `bindparam`s, and the `columns` that an insert fills."""

    def __init__(self, statement: Executable, *, columns: Sequence[str] | None = None) -> None:
        assert isinstance(statement, ClauseElement)
        self._statement = statement
        self._columns = None if columns is None else list(columns)
        self._compiled: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {}

    def run(self, connection: Connection, **values: Any) -> DBAPICursor:
        """Run it inside the caller's transaction; the driver's own cursor, whose rows are tuples.

        Raises:
            KeyError: a parameter is missing.
            SQLAlchemyError: as for any other statement.
        """
        compiled = self._compiled.get(connection.dialect.name) or self._compile(connection.dialect)
        sql, names, constants = compiled
        cursor = connection.connection.cursor()
        driver = connection.dialect.loaded_dbapi
        try:
            cursor.execute(sql, tuple([values[name] if name in values else constants[name] for name in names]))
        except driver.Error as error:  # as SQLAlchemy would; its parameters are what clients wrote
            raise DBAPIError.instance(
                sql, None, error, driver.Error, hide_parameters=True, dialect=connection.dialect
            ) from error
        return cursor

    def _compile(self, dialect: Dialect) -> tuple[str, tuple[str, ...], dict[str, Any]]:
        compiled = self._statement.compile(dialect=dialect, column_keys=self._columns)
        if not isinstance(compiled, SQLCompiler) or compiled.positiontup is None:
            raise TypeError(f"the driver of {dialect.name} does not take parameters by position")
        constants = {name: bind.value for name, bind in compiled.binds.items() if not bind.required}
        made = str(compiled), tuple(compiled.positiontup), constants
        self._compiled[dialect.name] = made
        return made
