"""For all tests, those in the documentation too: caches go to a folder that is thrown away; nothing is downloaded."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the hub's client is imported
settings.register_profile("safda", deadline=None)  # a busy machine is no fault
settings.load_profile("safda")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    patch = pytest.MonkeyPatch()
    patch.setenv("SAFDA_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Begin every test with the same generator, whichever ran before it in the same process."""
    torch.manual_seed(0)
