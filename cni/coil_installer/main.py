"""`coil-installer` installs, `coil-installer uninstall` removes; settings come from the environment. `coil-installer
load-modules NAME...` has the node's kernel load modules that nothing on a node asks for, so that no program that
stays needs the right to do so. A kernel without them is good for all else: coild tells the pods that want them.
`coil-installer restore-sysctls RECORD...` gives the node's settings the values that they had before Coil.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from coil.netlink.connection import Connection
from coil.netlink.error import NetlinkError
from coil.netlink.forwarding import read_pod_links
from coil.netlink.kernel_module import Loader, ensure_modules, load_module
from coil.netlink.node_sysctl import restore_sysctls
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


def report_restored(records: Sequence[Path], out: TextIO) -> None:
    """Give the node's sysctls the values that the records have, and write what was done, and what was not. Idempotent.

    Raises NetlinkError.
    """
    with Connection() as connection:
        has_pods = bool(read_pod_links(connection))
    for record in records:
        done = restore_sysctls(record, has_pods=has_pods)
        for sysctl in done.restored:
            print(f"coil-installer: {sysctl.path} is {sysctl.value} again", file=out)
        for sysctl in done.kept:
            message = (
                f"{sysctl.path} remains {sysctl.value}, as pods are still connected on the node; restart the node, or "
                "run this again when they are gone"
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
    restoring = actions.add_parser("restore-sysctls", help="a record that is missing is no error")
    restoring.add_argument("records", nargs="+", type=Path, metavar="RECORD")
    options = parser.parse_args()
    try:
        match options.action:
            case "uninstall":
                folders = parse_folders(os.environ)
                if rest := uninstall(folders):
                    report_rest(folders.conf_name, rest, sys.stderr)
            case "load-modules":
                report_missing(options.modules, sys.stderr)
            case "restore-sysctls":
                report_restored(options.records, sys.stderr)
            case _:
                install(parse_settings(os.environ))
    except (InstallError, NetlinkError, OSError) as error:
        sys.exit(f"coil-installer: {error}")


if __name__ == "__main__":
    main()
