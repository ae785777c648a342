"""Container images made on the spot, as an OCI image layout in a tar (OCI image specification 1.0), without a registry.

The two images that are made here hold Debian's static busybox; they differ in what they run. Pods use them with
``imagePullPolicy: Never``. ``write_archive`` takes others as well.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

BUSYBOX_IMAGE = "coil.test/busybox:1"
PAUSE_IMAGE = "coil.test/pause:1"

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "riscv64": "riscv64", "s390x": "s390x", "ppc64le": "ppc64le"}
_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"


class ImageError(Exception):
    """An image could not be made; the message says what to do."""


def machine_architecture() -> str:
    """This machine's, by the name that images have for it."""
    return _ARCHITECTURES[platform.machine()]


@dataclass(frozen=True, slots=True)
class Image:
    """An image of one layer (a tar) under a name. `command` is empty where whoever starts it names the program.

    What a container's `args` replace is `command`; `entrypoint` stands before it, and is replaced by its `command`.
    """

    name: str
    layer: bytes
    command: Sequence[str] = ()
    entrypoint: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: {"PATH": "/bin"})
    labels: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    architecture: str = field(default_factory=machine_architecture)


def busybox_images() -> list[Image]:
    """The sandbox image and the image for pods."""
    binary = _static_busybox()
    applets = subprocess.run([binary, "--list"], check=True, capture_output=True, text=True, timeout=60).stdout.split()
    layer = _layer(binary, applets)
    return [
        # A sandbox is ended by SIGKILL, so that its first process ignores SIGTERM delays nothing.
        Image(name=PAUSE_IMAGE, layer=_layer(binary, []), command=["/bin/busybox", "sleep", "infinity"]),
        Image(name=BUSYBOX_IMAGE, layer=layer, command=["/bin/sh"]),
    ]


def write_archive(path: Path, images: Sequence[Image]) -> Path:
    """Write ``images`` as one OCI layout that ``ctr images import`` takes."""
    with tarfile.open(path, "w") as archive:
        manifests = [_add_image(archive, image) for image in images]
        _add(archive, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        _add(archive, "index.json", json.dumps({"schemaVersion": 2, "manifests": manifests}).encode())
    return path


def _add_image(archive: tarfile.TarFile, image: Image) -> Mapping[str, object]:
    """Add the blobs of ``image`` and return the index' descriptor of its manifest."""
    layer = _add_blob(archive, image.layer, "application/vnd.oci.image.layer.v1.tar")
    config = {
        "architecture": image.architecture,
        "os": "linux",
        "config": {
            "Env": [f"{name}={value}" for name, value in image.environment.items()],
            "Cmd": list(image.command),
            **({"Entrypoint": list(image.entrypoint)} if image.entrypoint else {}),
            "Labels": dict(image.labels),
            "User": image.user,
        },
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST_TYPE,
        "config": _add_blob(archive, json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json"),
        "layers": [layer],
    }
    descriptor = _add_blob(archive, json.dumps(manifest).encode(), _MANIFEST_TYPE)
    return {**descriptor, "annotations": {"io.containerd.image.name": image.name}}


def _add_blob(archive: tarfile.TarFile, content: bytes, media_type: str) -> dict[str, object]:
    digest = hashlib.sha256(content).hexdigest()
    # Images may have the same layer.
    if (path := f"blobs/sha256/{digest}") not in archive.getnames():
        _add(archive, path, content)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


def _layer(binary: Path, applets: Sequence[str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for name, mode in (("bin", 0o755), ("etc", 0o755), ("root", 0o700), ("tmp", 0o1777)):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, mode
            layer.addfile(folder)
        _add(layer, "bin/busybox", binary.read_bytes(), mode=0o755)
        for applet in applets:
            if applet != "busybox":
                link = tarfile.TarInfo(f"bin/{applet}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                layer.addfile(link)
        _add(layer, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
        _add(layer, "etc/group", b"root:x:0:\n")
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def _static_busybox() -> Path:
    found = shutil.which("busybox")
    # A dynamically linked program names its interpreter near its start (ELF, PT_INTERP).
    if found is None or b"/ld-" in Path(found).read_bytes()[:4096]:
        raise ImageError("images need a static busybox; install it: apt-get install busybox-static")
    return Path(found)
