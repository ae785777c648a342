"""`coil-installer` installs, `coil-installer uninstall` removes. Settings come from the environment."""

import argparse
import os
import sys

from coil_installer.error import InstallError
from coil_installer.node_files import install, uninstall
from coil_installer.settings import parse_place, parse_settings


def main() -> None:
    """Exit status 0 when the node is as asked; otherwise 1 and one sentence on standard error."""
    parser = argparse.ArgumentParser(prog="coil-installer", description=__doc__)
    parser.add_argument("action", nargs="?", choices=("install", "uninstall"), default="install")
    action = parser.parse_args().action
    try:
        if action == "install":
            install(parse_settings(os.environ))
        else:
            uninstall(parse_place(os.environ))
    except (InstallError, OSError) as error:
        sys.exit(f"coil-installer: {error}")


if __name__ == "__main__":
    main()
