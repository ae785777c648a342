"""Settings of all tests of the plugin."""

import pytest


@pytest.fixture(autouse=True)
def _no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """STATUS does not wait for a coild that is away."""
    monkeypatch.setattr("coil_cni.service.STATUS_GRACE", 0.0)
