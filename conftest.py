"""For all tests, those in the documentation too: caches go to a folder that is thrown away."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    patch = pytest.MonkeyPatch()
    patch.setenv("SAFDA_CACHE", str(tmp_path_factory.mktemp("cache")))
