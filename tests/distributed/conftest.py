"""Fixtures of the trainings here."""

from pathlib import Path

import pytest
from pipeline.workspace import prepared


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    """The manifest of prepared sentences, which nothing changes."""
    return prepared(tmp_path_factory.mktemp("prepared"))
