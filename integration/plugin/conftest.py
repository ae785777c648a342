"""The plugin in its jail."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.plugin.executable import plugin_executable
from integration.plugin.jail import Jail


@pytest.fixture
def jail() -> Iterator[Jail]:
    """The root of a node with the plugin installed. Its path is short enough for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="coil-jail-") as folder:
        made = Jail(Path(folder))
        made.install(plugin_executable())
        yield made
