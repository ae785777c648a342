"""`python -m coil_sbom.check`: list the known defects of what an SBOM names, from a file and without a network.

Exit status 0: none that has a fix. 1: there is one. 2: something cannot be read.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from coil_sbom.document import UnreadableSbomError, parse_sbom
from coil_sbom.osv import Defect, UnreadableDatabaseError, known_defects, read_database


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m coil_sbom.check", description=__doc__)
    parser.add_argument("sbom", type=Path, help="CycloneDX in JSON")
    parser.add_argument("database", type=Path, nargs="+", help="records in OSV's format: zip files or folders")
    parser.add_argument("--ignore", action="append", default=[], metavar="ID", help="a defect that does not apply")
    arguments = parser.parse_args(argv)
    try:
        components = parse_sbom(arguments.sbom.read_text())
        database = read_database(arguments.database)
        defects = known_defects(components, database)
    except (UnreadableSbomError, UnreadableDatabaseError, OSError, UnicodeError) as error:
        sys.stderr.write(f"check: {error}\n")
        return 2
    ignored = set(arguments.ignore)
    found = [one for one in defects if not ignored & {one.identifier, *one.aliases}]
    fixable = sum(1 for defect in found if defect.fixed)
    for defect in found:
        sys.stdout.write(f"{_line(defect)}\n")
    sys.stdout.write(
        f"{len(components)} components, {len(database.records)} records (the latest of {database.modified or 'no time'}"
        f"): {fixable} known defects with a fix, {len(found) - fixable} without\n"
    )
    return 1 if fixable else 0


def _line(defect: Defect) -> str:
    url = defect.component.url
    linked = f", linked into {defect.component.linked_into}" if defect.component.linked_into else ""
    names = ", ".join([defect.identifier, *defect.aliases])
    fixed = f"fixed in {defect.fixed}" if defect.fixed else "no fix yet"
    return f"{url.name} {url.version}{linked}: {names}: {fixed}: {defect.summary}"


if __name__ == "__main__":
    sys.exit(main())
