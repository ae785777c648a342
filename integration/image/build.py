"""`build_image()`: the project's image, as the Dockerfile says, in an archive that `ctr images import` takes.

It is for this machine's architecture, or for another one whose programs the machine can be made to execute.

The way of a build: the Dockerfile's text becomes stages, each step gets a name by all that goes into it, and the last
of these names is the archive's. If it is there nothing is done. Otherwise the missing layers are made, and the folder
that the last stage copies becomes the image's single layer.
"""

import fcntl
import hashlib
import json
import os
import tarfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from integration.cluster import image as image_module
from integration.cluster.cache import cache_root
from integration.cluster.image import Image, machine_architecture, write_archive
from integration.image.base import NAMES, describe_base
from integration.image.context import copied_files, parse_ignore
from integration.image.dockerfile import SCRATCH, Copy, Run, Stage, parse_dockerfile
from integration.image.emulation import emulation
from integration.image.error import ImageBuildError
from integration.image.layers import Input, Layer, Layers, name_layers

REPOSITORY = Path(__file__).resolve().parents[2]
IMAGE = f"coil.test/coil:{tomllib.loads((REPOSITORY / 'pyproject.toml').read_text())['project']['version']}"
"""The image's name on a cluster's nodes; pods use it with `imagePullPolicy: Never`."""
CURRENT: Mapping[str, str] = MappingProxyType({"DEBIAN": "current"})
"""Build arguments: Debian's packages of this moment. Its archive forgets the locked ones as soon as there are newer
ones, and a checkout has to stay buildable.
"""
SBOM = "./usr/share/coil/sbom.cdx.json"
"""In the image."""
_KEPT = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """All that goes into an image, read once: what is built of it does not change while somebody edits the checkout."""

    architecture: str
    base: str
    """The base's description."""
    layers: Sequence[Layer]
    folder: str
    """Of the root that the layers make: the image's root."""
    environment: Mapping[str, str]
    labels: Mapping[str, str]
    user: str

    @property
    def archive(self) -> str:
        """The archive's name, by digest of everything else."""
        configuration = json.dumps(
            [self.architecture, self.folder, dict(self.environment), dict(self.labels), self.user, IMAGE]
        )
        writer = Path(image_module.__file__).read_text()
        digest = hashlib.sha256("\0".join([self.layers[-1].name, configuration, writer]).encode()).hexdigest()
        return f"coil-{digest[:16]}.tar"


def read_stages(arguments: Mapping[str, str] = CURRENT) -> list[Stage]:
    """Of the checkout's Dockerfile, with these build arguments. Raises DockerfileError."""
    return parse_dockerfile((REPOSITORY / "Dockerfile").read_text(), arguments)


def read_plan(architecture: str | None = None, arguments: Mapping[str, str] = CURRENT) -> Plan:
    """Of the checkout as it is; this machine's architecture by default.

    Raises ImageBuildError, DockerfileError or ContextError.
    """
    architecture = architecture or machine_architecture()
    build, last, folder = _two_stages(read_stages(arguments))
    base = describe_base(architecture)
    return Plan(
        architecture=architecture,
        base=base,
        layers=name_layers(base, _inputs(build)),
        folder=folder,
        environment=last.environment,
        labels=last.labels,
        user=last.user,
    )


def build_image(plan: Plan | None = None, *, folder: Path | None = None) -> Path:
    """The archive, from the cache when nothing that goes into it has changed; root, and minutes the first time.

    `folder` takes the cache's place. Idempotent; may be called by many processes at once, of which one builds. A build
    that is cut short leaves at most a folder that the next one removes. Raises what `read_plan` does, for all that goes
    wrong on the way ImageBuildError.
    """
    plan = plan or read_plan()
    # Not one folder for all: an emulated build would keep all others waiting, and its layers would take their place.
    own = plan.architecture == machine_architecture()
    folder = folder or cache_root() / ("image" if own else f"image-{plan.architecture}")
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / plan.archive
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.is_file():
            archive.touch()
        else:
            _build(plan, folder, archive)
            for old in sorted(folder.glob("coil-*.tar"), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
                old.unlink()
                sbom_of(old).unlink(missing_ok=True)
    return archive


def sbom_of(archive: Path) -> Path:
    """The SBOM beside the archive, the same as in it."""
    return archive.with_suffix(".cdx.json")


def _build(plan: Plan, folder: Path, archive: Path) -> None:
    if os.geteuid() != 0:
        raise ImageBuildError("to build the image without Docker takes root; run it with sudo, or use docker build")
    layers = Layers(folder, architecture=plan.architecture)
    with emulation(plan.architecture):
        layers.make(plan.layers, base=plan.base)
        _pack(plan, layers, folder, archive)


def _pack(plan: Plan, layers: Layers, folder: Path, archive: Path) -> None:
    packed, unfinished = folder / "unfinished.layer", folder / "unfinished.tar"
    try:
        layers.pack(plan.layers, base=plan.base, inside=plan.folder, output=packed)
        made = Image(
            name=IMAGE,
            layer=packed.read_bytes(),
            environment=plan.environment,
            labels=plan.labels,
            user=plan.user,
            architecture=plan.architecture,
        )
        sbom_of(archive).write_bytes(_read_sbom(packed))
        write_archive(unfinished, [made]).replace(archive)
    finally:
        packed.unlink(missing_ok=True)
        unfinished.unlink(missing_ok=True)


def _read_sbom(packed: Path) -> bytes:
    with tarfile.open(packed) as layer:
        try:
            file = layer.extractfile(SBOM)
        except KeyError:
            file = None
        if file is None:
            raise ImageBuildError(f"the image has no SBOM at {SBOM}")
        return file.read()


def _two_stages(stages: Sequence[Stage]) -> tuple[Stage, Stage, str]:
    """The stage that is carried out, the last one, and the folder that it copies to an empty root."""
    match stages:
        case [build, Stage(base=base, steps=[Copy(sources=(folder,), target="/", stage=copied)]) as last]:
            if build.base in NAMES and copied == build.name and base == SCRATCH:
                return build, last, folder
    raise ImageBuildError(
        f"without Docker, a Dockerfile is a stage from {NAMES[0]} and one from {SCRATCH} that copies a folder of it"
    )


def _inputs(stage: Stage) -> list[Input]:
    ignores = parse_ignore((REPOSITORY / ".dockerignore").read_text())
    return [
        step if isinstance(step, Run) else tuple(copied_files(REPOSITORY, step.sources, step.target, ignores=ignores))
        for step in stage.steps
    ]
