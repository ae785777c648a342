"""What is said when the library cannot be used at all."""

import subprocess
import sys

import pytest

from coil.nft.netfilter import NftError
from coil.nft.table_sync import run


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nftables", None)
    with pytest.raises(NftError, match="write table inet x: the Python package pip-nftables is missing"):
        run([], doing="write table inet x")


def test_the_library_is_not_loaded_before_it_is_needed() -> None:
    script = "import sys, coil.nat.client, coil.nat.router; sys.exit('nftables' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
