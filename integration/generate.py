"""Writes the files of the repository that are made from code: `python -m integration.generate`.

The chart's CRDs, from `coil.crd.schema`, and its dashboards. Unit tests compare what is committed with what this makes.
"""

import json
from pathlib import Path

import yaml

from coil.crd.schema import definitions
from integration.dashboard.egress import egress_dashboard
from integration.dashboard.ipam import ipam_dashboard
from integration.pod_template_schema import pod_template_schema

ROOT = Path(__file__).resolve().parent.parent
CRDS = ROOT / "charts" / "coil" / "crds"
DASHBOARDS = ROOT / "charts" / "coil" / "dashboards"
_HEADER = "# Made from services/coil/crd/schema.py by `python -m integration.generate`: do not edit.\n"


class _PlainDumper(yaml.SafeDumper):
    """Writes what is used twice twice: readers of manifests need not know YAML's anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def render_files() -> dict[Path, str]:
    """Every generated file and its text."""
    files = {
        CRDS / name: _HEADER + yaml.dump(document, Dumper=_PlainDumper, sort_keys=False, width=110)
        for name, document in definitions(pod_template_schema()).items()
    }
    # JSON has no room for a note that the file is made, and by what.
    dashboards = (ipam_dashboard(), egress_dashboard())
    return files | {
        DASHBOARDS / f"{dashboard['uid']}.json": json.dumps(dashboard, indent=2) + "\n" for dashboard in dashboards
    }


def main() -> None:
    for path, text in render_files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
