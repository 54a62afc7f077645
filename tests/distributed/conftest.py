"""Fixtures of the trainings here."""

from pathlib import Path

import pytest
from pipeline.workspace import prepared


@pytest.fixture(scope="session")
def data(made_once) -> Path:
    """The manifest of prepared sentences, which nothing changes."""
    (manifest,) = made_once("prepared", prepared).glob("results/data/*/manifest.json")
    return manifest
