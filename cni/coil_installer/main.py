"""`coil-installer` installs, `coil-installer uninstall` removes; settings come from the environment. `coil-installer
load-modules NAME...` has the node's kernel load modules that nothing on a node asks for, so that no program that
stays needs the right to do so. A kernel without them is good for all else: coild tells the pods that want them.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from coil.netlink.error import NetlinkError
from coil.netlink.kernel_module import Loader, ensure_modules, load_module
from coil_installer.node_files import install, uninstall
from coil_installer.settings import InstallError, parse_folders, parse_settings


def report_missing(
    names: Sequence[str], out: TextIO, *, load: Loader = load_module, root: Path = Path("/sys/module")
) -> None:
    """Have each module in the kernel, or write a line that says why not and what to do. Idempotent."""
    for name in names:
        try:
            ensure_modules([name], load=load, root=root)
        except NetlinkError as error:
            print(f"coil-installer: {error}", file=out)


def report_rest(conf_name: str, rest: Sequence[str], out: TextIO) -> None:
    """Write a line that says what an uninstallation has left, and what to do."""
    message = (
        f"{conf_name} stays on the node with the entries of others ({', '.join(rest)}), which cannot connect a pod on "
        "their own; remove them by the programs that they are of, or delete the file"
    )
    print(f"coil-installer: {message}", file=out)


def main() -> None:
    """Exit status 0 when the node is as asked; otherwise 1 and one sentence on standard error."""
    parser = argparse.ArgumentParser(prog="coil-installer", description=__doc__)
    actions = parser.add_subparsers(dest="action")
    actions.add_parser("install", help="what is done without an action")
    actions.add_parser("uninstall")
    loading = actions.add_parser("load-modules", help="a module that cannot be loaded is reported, and is not an error")
    loading.add_argument("modules", nargs="+", metavar="NAME")
    options = parser.parse_args()
    try:
        match options.action:
            case "uninstall":
                folders = parse_folders(os.environ)
                if rest := uninstall(folders):
                    report_rest(folders.conf_name, rest, sys.stderr)
            case "load-modules":
                report_missing(options.modules, sys.stderr)
            case _:
                install(parse_settings(os.environ))
    except (InstallError, OSError) as error:
        sys.exit(f"coil-installer: {error}")


if __name__ == "__main__":
    main()
