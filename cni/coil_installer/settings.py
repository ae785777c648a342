"""What the installer is told, all of it by environment variables; the names are those of Coil v2."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coil_installer.conflist import check_conflist
from coil_installer.error import InstallError


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where on the node things go. The directories are the node's, perhaps as mounted into a container."""

    conf_dir: Path
    conf_name: str
    bin_dir: Path


@dataclass(frozen=True, kw_only=True)
class Settings:
    place: Place
    plugin: Path
    """The plugin's executable, as coil-freezer builds it."""
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
    """Also COIL_PATH and one of CNI_NETCONF and CNI_NETCONF_FILE. Raises InstallError."""
    return Settings(
        place=parse_place(environ),
        plugin=_plugin(environ.get("COIL_PATH") or "/coil"),
        netconf=_netconf(environ.get("CNI_NETCONF", ""), environ.get("CNI_NETCONF_FILE", "")),
    )


def _directory(environ: Mapping[str, str], name: str, default: str) -> Path:
    path = Path(environ.get(name) or default)
    if not path.is_absolute():
        raise InstallError(f"{name} must be an absolute path, not {str(path)!r}")
    return path


def _plugin(given: str) -> Path:
    path = Path(given)
    if not path.is_file():
        raise InstallError(f"COIL_PATH has no file {given}; build it with: python -m coil_freezer {given}")
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
