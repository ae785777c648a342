"""Writes the files of the repository that are made from code: `python -m integration.generate`.

So far the chart's CRDs, from `coil.crd.schema`. A unit test compares what is committed with what this makes.
"""

from pathlib import Path

import yaml

from coil.crd.schema import definitions

ROOT = Path(__file__).resolve().parent.parent
CRDS = ROOT / "charts" / "coil" / "crds"
_HEADER = "# Made from services/coil/crd/schema.py by `python -m integration.generate`: do not edit.\n"


def render_files() -> dict[Path, str]:
    """Every generated file and its text."""
    return {
        CRDS / name: _HEADER + yaml.safe_dump(document, sort_keys=False, width=110)
        for name, document in definitions().items()
    }


def main() -> None:
    for path, text in render_files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
