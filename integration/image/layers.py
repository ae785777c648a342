"""Each step of a stage as a folder in the cache, named by all that went into it; a step is carried out once.

    name_layers     a name for each step; pure
    Layers.make     what is missing of them, each on top of the ones before
    Layers.pack     a folder of the last one's root, as a tar in which nothing is by chance

Where an overlay can be mounted, a layer holds what its step changed. Elsewhere (a container's own file system) one root
is handed on from step to step, and a build begins at the base. A layer is made beside its place and renamed when it is
whole.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from integration.cluster.image import machine_architecture
from integration.cluster.requirement import can_mount_overlay
from integration.image.base import make_base
from integration.image.command import run_logged
from integration.image.context import CopiedFile
from integration.image.dockerfile import Run

Input = Run | tuple[CopiedFile, ...]
"""What a step is made of: a script, or files of the checkout."""

_PASSED_ON = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "PIP_INDEX_URL")
"""Variables of the machine that a RUN sees as well. They tell how packages are fetched and not which."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KEPT_DIFFERENCES = 16
_KEPT_ROOTS = 3

_ENTER = """
set -e
root=$1 overlay=$2
shift 2
if [ -n "$overlay" ]; then cd "$root/.."; mount -t overlay overlay -o "$overlay" "$root"; fi
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --bind /etc/resolv.conf "$root/etc/resolv.conf"
exec chroot "$root" "$@"
"""


@dataclass(frozen=True, slots=True)
class Layer:
    """A step, and the name of what comes of it and of all before it."""

    name: str
    step: Input


def name_layers(base: str, steps: Iterable[Input]) -> list[Layer]:
    """Names by digest: of the base's description, of scripts and their variables, of the files' paths and contents."""
    name = base_name(base)
    layers = []
    for step in steps:
        name = _digest(f"{name} {_describe(step)}".encode())
        layers.append(Layer(name, step))
    return layers


def base_name(base: str) -> str:
    """The name of the base with that description."""
    return _digest(base.encode())


def _describe(step: Input) -> str:
    if isinstance(step, Run):
        return json.dumps([step.script, dict(step.environment)])
    return json.dumps([(str(file.target), file.mode, _digest(file.content)) for file in step])


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]


class Layers:
    """The layers in `folder`, all of one architecture, in which nobody else may work at the same time.

    That is this machine's by default, and whether overlays can be mounted there is asked of the machine.
    """

    def __init__(self, folder: Path, *, overlay: bool | None = None, architecture: str | None = None) -> None:
        self._folder = folder
        self._architecture = architecture or machine_architecture()
        for leftover in folder.glob("new.*"):
            shutil.rmtree(leftover)
        self._overlay = can_mount_overlay(folder) if overlay is None else overlay
        self._kind = "difference" if self._overlay else "root"

    def make(self, layers: Sequence[Layer], *, base: str) -> None:
        """Have them all, and the base below them. Raises ImageBuildError; what was whole before stays."""
        paths = [self._path(base_name(base))]
        if not paths[0].is_dir():
            _say(f"Debian for {self._architecture}, from this machine's package sources")
            with self._new(paths[0]) as work:
                make_base(work / "files", work / "log", architecture=self._architecture)
        for layer in layers:
            path = self._path(layer.name)
            if not path.is_dir():
                with self._new(path) as work:
                    self._make_layer(work, layer.step, below=paths)
            paths.append(path)
        self._forget_all_but(paths)

    def pack(self, layers: Sequence[Layer], *, base: str, inside: str, output: Path) -> None:
        """The content of the folder `inside` as a tar: in order, owned by root, with the times that the steps set."""
        command = ["tar", "--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"]
        below = [self._path(base_name(base)), *(self._path(layer.name) for layer in layers)]
        with self._new() as work:
            if self._overlay:
                (work / "files").mkdir()
            else:
                work.joinpath("files").symlink_to(below[-1] / "files")
            self._enter(work, below, [*command, f"--directory={inside}", "."], output=output)

    def _make_layer(self, work: Path, step: Input, *, below: Sequence[Path]) -> None:
        files = work / "files"
        if self._overlay:
            files.mkdir()
        elif len(below) == 1:
            run_logged(["cp", "--archive", str(below[0] / "files"), str(files)], log=work / "log")
        else:
            (below[-1] / "files").rename(files)
            shutil.rmtree(below[-1])
        if isinstance(step, Run):
            _say(step.script)
            self._enter(work, below, ["/bin/sh", "-c", step.script], environment=step.environment)
            return
        for file in step:
            target = files / file.target.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.content)
            target.chmod(file.mode)

    def _enter(
        self,
        work: Path,
        below: Sequence[Path],
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        output: Path | None = None,
    ) -> None:
        """Run a command in the root that the layers make; in an overlay, what it changes comes to `files` in `work`."""
        root, options = work / "files", ""
        if self._overlay:
            root = work / "root"
            for folder in (root, work / "overlay", work / "below"):
                folder.mkdir()
            # By short names: the mount of util-linux 2.41 takes no option of more than 255 characters.
            lower = [f"below/{number}" for number in range(len(below))]
            for name, path in zip(lower, reversed(below), strict=True):
                (work / name).symlink_to(path / "files")
            options = f"lowerdir={':'.join(lower)},upperdir=files,workdir=overlay"
        passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        run_logged(
            ["sh", "-c", _ENTER, "sh", str(root), options, *command],
            log=work / "log",
            output=output,
            environment={"PATH": _PATH, "HOME": "/root", **passed, **(environment or {})},
        )

    @contextmanager
    def _new(self, path: Path | None = None) -> Iterator[Path]:
        """A folder that is moved to `path` when the block has ended well, and otherwise removed."""
        work = Path(tempfile.mkdtemp(prefix="new.", dir=self._folder))
        work.chmod(0o755)
        try:
            yield work
            if path is not None:
                for folder in (work / "root", work / "overlay", work / "below"):
                    shutil.rmtree(folder, ignore_errors=True)
                work.rename(path)
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{self._kind}-{name}"

    def _forget_all_but(self, paths: Sequence[Path]) -> None:
        """Remove what has not been used for longest; the given ones are used now."""
        for path in paths:
            if path.is_dir():
                os.utime(path)
        known = sorted(self._folder.glob(f"{self._kind}-*"), key=lambda path: path.stat().st_mtime)
        for path in known[: -(_KEPT_DIFFERENCES if self._overlay else _KEPT_ROOTS)]:
            shutil.rmtree(path)


def _say(what: str) -> None:
    print(f"image: {' '.join(what.split())[:90]}", flush=True)
