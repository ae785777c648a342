"""`python -m integration.image`: have the image's archive at hand, and say where it is. `--help` tells the rest."""

import argparse
import sys
import time

from integration.image.build import CURRENT, IMAGE, build_image, read_plan, sbom_of
from integration.image.context import ContextError
from integration.image.dockerfile import DockerfileError
from integration.image.emulation import ARCHITECTURES
from integration.image.error import ImageBuildError


def main() -> int:
    """Exit status 0 when the archive is there; otherwise 1 and the reason on standard error."""
    parser = argparse.ArgumentParser(prog="python -m integration.image", description=__doc__)
    parser.add_argument(
        "--platform",
        choices=[f"linux/{name}" for name in ARCHITECTURES],
        help="what the image is for, as Docker spells it; by default this machine's",
    )
    parser.add_argument(
        "--locked",
        action="store_true",
        help="take Debian's packages of image/debian.*.sha256 and no others; by default those of today",
    )
    arguments = parser.parse_args()
    platform: str | None = arguments.platform
    begun = time.monotonic()
    try:
        archive = build_image(
            read_plan(
                platform.removeprefix("linux/") if platform else None,
                {"DEBIAN": "locked"} if arguments.locked else CURRENT,
            )
        )
    except (ImageBuildError, DockerfileError, ContextError) as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    print(f"its SBOM: {sbom_of(archive)}")
    print(f"{IMAGE} ({archive.stat().st_size >> 20} MB, {time.monotonic() - begun:.1f} s): {archive}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
