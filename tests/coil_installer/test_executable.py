"""What is an executable that needs nothing, and what is not."""

import sys
from pathlib import Path

import pytest

from coil_installer.node_files import check_self_contained
from coil_installer.settings import InstallError
from integration.plugin.executable import plugin_executable


def test_the_plugin_needs_nothing() -> None:
    check_self_contained(plugin_executable().read_bytes())


def test_a_program_with_shared_libraries() -> None:
    with pytest.raises(InstallError, match="shared libraries"):
        check_self_contained(Path(sys.executable).read_bytes())


@pytest.mark.parametrize("size", [0, 3, 16, 63, 64, 100])
def test_a_program_that_is_cut_short(size: int) -> None:
    with pytest.raises(InstallError, match="not an executable"):
        check_self_contained(plugin_executable().read_bytes()[:size])


def test_entries_without_a_size() -> None:
    data = bytearray(plugin_executable().read_bytes()[:4096])
    data[54:56] = b"\0\0"
    with pytest.raises(InstallError, match="not an executable"):
        check_self_contained(bytes(data))
