import errno
import os
from pathlib import Path

import pytest

from coil.netlink.error import NetlinkError
from coil.netlink.kernel_module import ensure_modules


class MemoryLoader:
    """Loads nothing, or fails with an error number."""

    def __init__(self, number: int = 0) -> None:
        self.loaded: list[str] = []
        self._number = number

    def load(self, name: str) -> None:
        if self._number:
            raise OSError(self._number, os.strerror(self._number))
        self.loaded.append(name)


def test_only_what_is_not_there_is_loaded_in_the_order_given(tmp_path: Path) -> None:
    (tmp_path / "fou").mkdir()
    loader = MemoryLoader()
    ensure_modules(("udp_tunnel", "fou", "fou6"), load=loader.load, root=tmp_path)
    assert loader.loaded == ["udp_tunnel", "fou6"]


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EPERM, "may not load it (CAP_SYS_MODULE)"),
        (errno.ENOENT, "there is none for"),
        (errno.ENOEXEC, "cannot be loaded: Exec format error"),
    ],
)
def test_an_error_names_the_module_and_what_to_do(tmp_path: Path, number: int, said: str) -> None:
    with pytest.raises(NetlinkError) as caught:
        ensure_modules(("fou", "fou6"), load=MemoryLoader(number).load, root=tmp_path)
    assert said in str(caught.value)
    assert str(caught.value).startswith("the kernel module fou ")
    assert str(caught.value).endswith("; on the node, run `modprobe fou`")
