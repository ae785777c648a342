"""What a program takes on that uses the library alone: its modules are asked in a fresh interpreter."""

import subprocess
import sys

import pytest

THIRD_PARTY = {"msgspec", "typing_extensions"}
_ASK = "import sys; before = set(sys.modules); import {module}; print(*sorted(set(sys.modules) - before))"
_SECONDS = 60.0


@pytest.mark.parametrize("module", ["coil.nat", "coil.nat.client", "coil.nat.router"])
def test_nothing_of_kubernetes_is_imported(module: str) -> None:
    command = [sys.executable, "-c", _ASK.format(module=module)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SECONDS)
    imported = done.stdout.split()
    assert module in imported
    assert {name.partition(".")[0] for name in imported} - sys.stdlib_module_names <= THIRD_PARTY | {"coil"}
    rooms = {name.split(".")[1] for name in imported if name.startswith("coil.")}
    assert not rooms & {"kube", "reconcile", "manager", "cnirpc", "admission", "runtime"}
