"""MLflow's empty tables, made once and copied into each new SQLite database: MLflow makes them by all migrations since its beginnings, in seconds."""

import sqlite3
import tempfile
from pathlib import Path
from typing import Any


def make_once() -> None:
    """For this process and those forked from it."""
    import sqlalchemy
    from mlflow.store.db import utils

    folder = tempfile.TemporaryDirectory(prefix="mlflow-tables-")
    database = Path(folder.name) / "empty.db"
    engine = sqlalchemy.create_engine(f"sqlite:///{database}")
    make = utils._initialize_tables
    make(engine)
    engine.dispose()
    with sqlite3.connect(database) as made:
        tables = made.serialize()
    made.close()
    folder.cleanup()

    def initialize(engine: Any) -> None:
        if engine.dialect.name != "sqlite":
            return make(engine)
        connection = engine.raw_connection()
        ours = sqlite3.connect(":memory:")
        ours.deserialize(tables)
        ours.backup(connection.driver_connection)
        ours.close()
        connection.close()

    utils._initialize_tables = initialize
