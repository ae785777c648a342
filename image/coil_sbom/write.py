"""`python -m coil_sbom.write`: print the SBOM of an image's root. The build of the image does this (Dockerfile)."""

import argparse
import sys
from itertools import chain
from pathlib import Path

from coil_sbom.component import debian_components, python_components
from coil_sbom.document import render_sbom


def main() -> None:
    """Raises UnreadablePackageError or OSError: then the image is not to be built."""
    parser = argparse.ArgumentParser(prog="python -m coil_sbom.write", description=__doc__)
    parser.add_argument("root", type=Path, help="the image's root")
    parser.add_argument("--version", required=True, help="of the image")
    parser.add_argument("--linked", type=Path, required=True, help="as /var/lib/dpkg/status.d: static libraries")
    parser.add_argument("--linked-into", required=True, help="the program that these have become part of")
    arguments = parser.parse_args()
    components = chain(
        debian_components(arguments.root / "var/lib/dpkg/status.d"),
        debian_components(arguments.linked, linked_into=arguments.linked_into),
        python_components(arguments.root),
    )
    sys.stdout.write(render_sbom("coil", arguments.version, components))


if __name__ == "__main__":
    main()
