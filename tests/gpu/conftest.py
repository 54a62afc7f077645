"""Without a GPU these tests fail; they are not skipped."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def gpu() -> None:
    import torch

    assert torch.cuda.is_available(), (
        "torch finds no GPU. Run `make test-gpu`, see what `nvidia-smi` lists, and whether `torch.version.cuda` is None"
    )
