"""The container images that the pods of Kubernetes' tests ask for by name, made on the spot, without a registry.

They stand in for the published ones, whose registries a test run does not need: `e2e.test` is told by `repo_list` that
all images are in one of the project's own name. Their root is Debian's, with the programs that the tests start in it.
`python -m integration.conformance.images` has the archive at hand.
"""

import fcntl
import hashlib
import io
import json
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from integration.cluster import image as image_module
from integration.cluster.build_steps import BuildError
from integration.cluster.cache import cache_root
from integration.cluster.image import Image, busybox_images, machine_architecture, write_archive
from integration.cluster.pki import CertificateAuthority
from integration.cluster.programs import CONFORMANCE, Program, locate
from integration.image.base import describe_base
from integration.image.dockerfile import Run
from integration.image.error import ImageBuildError
from integration.image.layers import Layers, name_layers

REGISTRY = "coil.test/e2e"
"""Where all images of the tests are; no server has this name, and nothing is ever fetched from it."""
COREDNS_IMAGE = "coil.test/coredns:1"

_AGNHOST, _GLIBC, _NGINX, _PAUSE = "agnhost:2.66.1", "glibc-dns-testing:2.1.1", "nginx:1.27.0-2", "pause:3.10.2"
"""The versions that the tests of the pinned release ask for; `e2e.test --list-images` prints them."""

_REGISTRY_FIELDS = (
    "promoterE2eRegistry",
    "buildImageRegistry",
    "invalidRegistry",
    "gcEtcdRegistry",
    "gcRegistry",
    "sigStorageRegistry",
    "privateRegistry",
    "dockerLibraryRegistry",
    "cloudProviderGcpRegistry",
)
"""Every registry that `e2e.test` knows (its test/utils/image/manifest.go)."""

_PACKAGES = ("bash", "curl", "dnsutils", "iperf", "iproute2", "netcat-openbsd", "socat")
_ROOT = "/image"
_SCRIPT = f"""
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install --yes --no-install-recommends {" ".join(_PACKAGES)}
rm -rf /var/lib/apt/lists/* /var/cache/* /usr/share/doc /usr/share/locale /usr/share/man
mkdir --parents {_ROOT}/dev {_ROOT}/proc {_ROOT}/sys {_ROOT}/run {_ROOT}/uploads
cp --archive /bin /etc /home /lib* /root /sbin /tmp /usr /var {_ROOT}/
rm -rf {_ROOT}/etc/apt {_ROOT}/usr/local/share/ca-certificates
: >{_ROOT}/etc/resolv.conf
"""
"""The image's root is a copy: the root that the script runs in has this machine's devices and resolver mounted."""
_KEPT = 2


def repo_list() -> str:
    """The file that the variable KUBE_TEST_REPO_LIST names: every registry is `REGISTRY`."""
    return json.dumps(dict.fromkeys(_REGISTRY_FIELDS, REGISTRY))


def build_images(folder: Path | None = None) -> Path:
    """The images in one archive, from the cache when nothing that goes into it has changed; root, minutes once.

    `folder` takes the place of the cache's, where the project's own image has its layers: both begin with the same
    Debian. Idempotent; may be called by many processes at once, of which one builds. A build that is cut short leaves
    at most a folder that the next one removes. Raises BuildError for the programs and ImageBuildError for the rest.
    """
    programs = locate(CONFORMANCE)
    folder = folder or cache_root() / "image"
    folder.mkdir(parents=True, exist_ok=True)
    base = describe_base(machine_architecture())
    layers = name_layers(base, [Run(_SCRIPT, {})])
    name = _digest(layers[-1].name, programs[Program.AGNHOST], programs[Program.COREDNS])
    archive = folder / f"conformance-{name}.tar"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.is_file():
            archive.touch()
            return archive
        for leftover in folder.glob("conformance.*.d"):
            shutil.rmtree(leftover)
        root = Layers(folder)
        root.make(layers, base=base)
        with tempfile.TemporaryDirectory(prefix="conformance.", suffix=".d", dir=folder) as scratch:
            packed = Path(scratch) / "root.tar"
            root.pack(layers, base=base, inside=_ROOT, output=packed)
            _add_agnhost(packed, programs[Program.AGNHOST], Path(scratch))
            images = _images(packed.read_bytes(), coredns=programs[Program.COREDNS])
            write_archive(Path(scratch) / "archive.tar", images).replace(archive)
        for old in sorted(folder.glob("conformance-*.tar"), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
            old.unlink()
    return archive


def _digest(root: str, *programs: Path) -> str:
    """Of all that goes into the archive; a program's place in the cache says what it was built from."""
    code = [Path(module).read_text() for module in (__file__, image_module.__file__)]
    return hashlib.sha256("\0".join([root, *map(str, programs), *code]).encode()).hexdigest()[:16]


def _add_agnhost(packed: Path, agnhost: Path, scratch: Path) -> None:
    """The program, and the certificate that it shows when it is asked to serve TLS; nobody checks it."""
    serving = CertificateAuthority(scratch, name="agnhost").issue("localhost", hosts=["localhost"])
    with tarfile.open(packed, "a") as layer:
        for name, source in (
            ("agnhost", agnhost),
            ("localhost.crt", serving.certificate),
            ("localhost.key", serving.key),
        ):
            _add_file(layer, name, source.read_bytes())


def _images(debian: bytes, *, coredns: Path) -> Sequence[Image]:
    pause, busybox = busybox_images()
    path = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        _add_file(layer, "coredns", coredns.read_bytes())
    return [
        Image(f"{REGISTRY}/{_AGNHOST}", debian, command=["pause"], entrypoint=["/agnhost"], environment=path),
        Image(f"{REGISTRY}/{_GLIBC}", debian, command=["/bin/bash"], environment=path),
        # Both are asked for where a pod only has to be there; the first has a web server as its namesake has.
        Image(f"{REGISTRY}/{_NGINX}", busybox.layer, command=["/bin/busybox", "httpd", "-f", "-p", "[::]:80"]),
        Image(f"{REGISTRY}/{_PAUSE}", pause.layer, command=pause.command),
        Image(COREDNS_IMAGE, buffer.getvalue(), entrypoint=["/coredns"]),
    ]


def _add_file(layer: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(f"./{name}")
    entry.size, entry.mode = len(content), 0o755
    layer.addfile(entry, io.BytesIO(content))


def main() -> int:
    """Exit status 0 when the archive is there; otherwise 1 and the reason on standard error."""
    begun = time.monotonic()
    try:
        archive = build_images()
    except (BuildError, ImageBuildError) as error:
        print(f"conformance images: {error}", file=sys.stderr)
        return 1
    print(f"conformance images ({archive.stat().st_size >> 20} MB, {time.monotonic() - begun:.1f} s): {archive}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
