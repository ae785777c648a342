"""The example of docs/nat.md, as a user of the library runs it: with what the library needs, and nothing else."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.kernel

SECONDS = 300.0
_NEEDED = {"msgspec", "typing_extensions", "nftables"}
"""The packages that docs/nat.md has users install; `nftables` is that of pip-nftables."""
_PROGRAM = """
import runpy, sys

class OnlyNeeded:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in needed:
            raise ModuleNotFoundError(f"{name} is not one of the packages that the library needs", name=name)

needed = {"coil", "integration", *sys.argv[1:], *sys.stdlib_module_names}
sys.meta_path.insert(0, OnlyNeeded())
runpy.run_module("integration.nat_example", run_name="__main__")
"""


def test_the_example_works_with_the_packages_that_the_library_needs() -> None:
    command = [sys.executable, "-c", _PROGRAM, *sorted(_NEEDED)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    there = "10.64.0.2 port 5555 > 10.64.0.3 port 5555 UDP, 65 bytes, TTL 225 [10.64.0.2 port "
    assert any(line.startswith(there) for line in lines), "the packet that docs/nat.md shows"
    assert lines[-1] == "The outside host saw: 10.64.0.3 fd64::3"
