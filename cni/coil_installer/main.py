"""`coil-installer` installs, `coil-installer uninstall` removes; settings come from the environment.
`coil-installer load-modules NAME...` has the node's kernel load modules.
"""

import argparse
import os
import sys

from coil_installer.error import InstallError
from coil_installer.kernel_module import report_missing
from coil_installer.node_files import install, uninstall
from coil_installer.settings import parse_place, parse_settings


def main() -> None:
    """Exit status 0 when the node is as asked; otherwise 1 and one sentence on standard error."""
    parser = argparse.ArgumentParser(prog="coil-installer", description=__doc__)
    actions = parser.add_subparsers(dest="action")
    actions.add_parser("install", help="what is done without an action")
    actions.add_parser("uninstall")
    loading = actions.add_parser("load-modules", help="a module that cannot be had is told, and no failure")
    loading.add_argument("modules", nargs="+", metavar="NAME")
    options = parser.parse_args()
    try:
        match options.action:
            case "uninstall":
                uninstall(parse_place(os.environ))
            case "load-modules":
                report_missing(options.modules, sys.stderr)
            case _:
                install(parse_settings(os.environ))
    except (InstallError, OSError) as error:
        sys.exit(f"coil-installer: {error}")


if __name__ == "__main__":
    main()
