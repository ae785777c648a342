"""OpenStack's own Neutron and Octavia, in a virtual environment in the cache: their versions of libraries are not ours.

An entry is `openstack-<digest of the pins and the Python>`, by one maker at a time; it counts once it is whole.
`python -m integration.neutron.environment` has it at hand.
"""

import fcntl
import hashlib
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from integration.cluster.cache import cache_root

PINS: Final = Path(__file__).parent / "constraints.txt"
_STEP_SECONDS: Final = 1200


class EnvironmentUnavailableError(Exception):
    """The services cannot be had; the message is what pip said."""


def find_environment() -> Path:
    """The interpreter with Neutron and Octavia; made if the cache has none. Raises EnvironmentUnavailableError.

    Idempotent. Interrupted, it has left nothing that would be taken for whole.
    """
    root = cache_root()
    place = root / f"openstack-{_digest()}"
    interpreter = place / "bin" / "python"
    if (place / "whole").is_file():
        return interpreter
    root.mkdir(parents=True, exist_ok=True)
    with (root / "openstack.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "whole").is_file():
            # Scripts have their folder's path in them, so it is made in its place, and stamped last.
            shutil.rmtree(place, ignore_errors=True)
            try:
                _run([sys.executable, "-m", "venv", str(place)])
                pip = [str(interpreter), "-m", "pip", "install", "--quiet", "--progress-bar", "off"]
                _run([*pip, "-c", str(PINS), "setuptools", "wheel"])
                _run([*pip, "--no-build-isolation", "-r", str(PINS)])
            except BaseException:
                shutil.rmtree(place, ignore_errors=True)
                raise
            (place / "whole").touch()
    return interpreter


def _digest() -> str:
    return hashlib.sha256(f"{platform.python_version()} {PINS.read_text()}".encode()).hexdigest()[:12]


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_STEP_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentUnavailableError(f"Neutron's packages could not be had within {_STEP_SECONDS} s") from None
    if done.returncode != 0:
        raise EnvironmentUnavailableError(f"Neutron's packages could not be had: {done.stderr.strip()[-2000:]}")


def main() -> int:
    try:
        print(find_environment())
    except (EnvironmentUnavailableError, OSError) as error:
        print(f"coil: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
