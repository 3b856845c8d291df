"""One script per revision of the schema; Alembic reads them, nothing imports them."""
