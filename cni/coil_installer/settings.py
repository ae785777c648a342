"""What the installer is told, all of it by environment variables; the names are those of Coil v2."""

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coil_installer.conflist import check_conflist
from coil_installer.error import InstallError

_SHEBANG_MAX = 127  # octets that kernels before 5.1 read of a first line


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where on the node things go. The directories are the node's, perhaps as mounted into a container."""

    conf_dir: Path
    conf_name: str
    bin_dir: Path


@dataclass(frozen=True, kw_only=True)
class Settings:
    place: Place
    plugin_source: Path
    """The directory of the package coil_cni."""
    interpreter: Path
    """The Python of the node that runs the plugin; of the same minor version as the installer's own."""
    netconf: str
    """The network configuration list, valid JSON."""


def parse_place(environ: Mapping[str, str]) -> Place:
    """CNI_ETC_DIR, CNI_CONF_NAME, CNI_BIN_DIR."""
    name = environ.get("CNI_CONF_NAME", "10-coil.conflist")
    if "/" in name or not name.endswith(".conflist"):
        raise InstallError(f"CNI_CONF_NAME must be a file name that ends in .conflist, not {name!r}")
    return Place(
        conf_dir=_directory(environ, "CNI_ETC_DIR", "/host/etc/cni/net.d"),
        conf_name=name,
        bin_dir=_directory(environ, "CNI_BIN_DIR", "/host/opt/cni/bin"),
    )


def parse_settings(environ: Mapping[str, str]) -> Settings:
    """Also COIL_PATH, COIL_PYTHON and one of CNI_NETCONF and CNI_NETCONF_FILE. Raises InstallError."""
    return Settings(
        place=parse_place(environ),
        plugin_source=_plugin_source(environ.get("COIL_PATH", "")),
        interpreter=_interpreter(environ.get("COIL_PYTHON", "")),
        netconf=_netconf(environ.get("CNI_NETCONF", ""), environ.get("CNI_NETCONF_FILE", "")),
    )


def _directory(environ: Mapping[str, str], name: str, default: str) -> Path:
    path = Path(environ.get(name) or default)
    if not path.is_absolute():
        raise InstallError(f"{name} must be an absolute path, not {str(path)!r}")
    return path


def _plugin_source(given: str) -> Path:
    if given:
        path = Path(given)
    else:
        spec = importlib.util.find_spec("coil_cni")
        if spec is None or spec.origin is None:
            raise InstallError("the package coil_cni is not installed; set COIL_PATH to its directory")
        path = Path(spec.origin).parent
    if not (path / "main.py").is_file():
        raise InstallError(f"COIL_PATH is not the directory of the package coil_cni: {path}")
    return path


def _interpreter(given: str) -> Path:
    # A virtual environment's interpreter is a link to the real one, and the environment is not on the node.
    path = Path(given or sys.executable)
    path = path if given else path.resolve()
    if not path.is_absolute() or len(str(path).split()) != 1:
        raise InstallError(f"COIL_PYTHON must be an absolute path without blanks, not {str(path)!r}")
    if len(f"#!{path} -IS\n".encode()) > _SHEBANG_MAX:
        raise InstallError(f"COIL_PYTHON is too long for the first line of a script: {path}")
    return path


def _netconf(text: str, file: str) -> str:
    if bool(text) is bool(file):
        raise InstallError("set one of CNI_NETCONF and CNI_NETCONF_FILE")
    if file:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InstallError(f"CNI_NETCONF_FILE cannot be read: {error}") from error
    check_conflist(text)
    return text
