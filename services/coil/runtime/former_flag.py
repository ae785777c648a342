"""The flags of Coil v2's Go programs that the programs here lack: manifests written for those start these.

Flags with the same name and meaning are settings. What is here either stands for settings of other names, or has no
meaning any more: `parse_settings` names these in one line and goes on. The Go programs have the flags of klog
(`klog.InitFlags`) and of zap (`zap.Options.BindFlags` in controller-runtime), besides their own.
"""

from collections.abc import Mapping
from typing import Final

from coil.runtime.flag import FormerFlag, parse_boolean

_KLOG: Final = (
    "-v",
    "--v",
    "--vmodule",
    "--alsologtostderrthreshold",
    "--log_backtrace_at",
    "--log_dir",
    "--log_file",
    "--log_file_max_size",
    "--stderrthreshold",
)
_KLOG_BOOLEANS: Final = (
    "--add_dir_header",
    "--alsologtostderr",
    "--legacy_stderr_threshold_behavior",
    "--logtostderr",
    "--one_output",
    "--skip_headers",
    "--skip_log_headers",
)
_LEVELS: Final = {"debug": "debug", "info": "info", "warn": "warning", "error": "error", "panic": "error"}
_FORMATS: Final = {"json": "json", "console": "text"}


def _level(text: str) -> Mapping[str, str]:
    """zap's: a name, or a number above 0, which is more than debug."""
    if text.isascii() and text.isdigit() and int(text) > 0:
        return {"log_level": "debug"}
    if text.lower() not in _LEVELS:
        raise ValueError("debug, info, warn, error, panic or a number above 0")
    return {"log_level": _LEVELS[text.lower()]}


def _format(text: str) -> Mapping[str, str]:
    if text not in _FORMATS:
        raise ValueError("json or console")
    return {"log_format": _FORMATS[text]}


def _development(text: str) -> Mapping[str, str]:
    return {"log_level": "debug", "log_format": "text"} if parse_boolean(text) else {}


def _nothing(_text: str) -> Mapping[str, str]:
    return {}


def _renamed(spelling: str, setting: str) -> FormerFlag:
    return FormerFlag(spelling, lambda text: {setting: text})


_LOGGING: Final = (
    FormerFlag("--zap-log-level", _level),
    FormerFlag("--zap-encoder", _format),
    FormerFlag("--zap-devel", _development, boolean=True),
    FormerFlag("--zap-stacktrace-level", _nothing),
    FormerFlag("--zap-time-encoding", _nothing),
    *(FormerFlag(spelling, _nothing) for spelling in _KLOG),
    *(FormerFlag(spelling, _nothing, boolean=True) for spelling in _KLOG_BOOLEANS),
)
"""Of all programs. What comes first counts: what `--zap-devel` says only where nothing else is given."""

_BACKEND: Final = (FormerFlag("--backend", _nothing), FormerFlag("--enable-nft", _nothing, boolean=True))
"""Egress NAT is always made of rules of nftables."""

_CERTIFICATES: Final = (
    FormerFlag("--enable-cert-rotation", _nothing, boolean=True),
    FormerFlag("--enable-restart-on-cert-refresh", _nothing, boolean=True),
)
"""The controllers always renew their certificates, and read those of others again when they change."""

_ROUTE_SYNC_INTERVAL: Final = _renamed("--update-interval", "route_sync_interval")

COILD: Final = (
    *_LOGGING,
    *_BACKEND,
    FormerFlag("--register-from-main", _nothing, boolean=True),
    _ROUTE_SYNC_INTERVAL,
)

ROUTER: Final = (*_LOGGING, _ROUTE_SYNC_INTERVAL, _renamed("--protocol-id", "route_sync_protocol_id"))
"""coil-router, whose work coild does with `--route-sync`: coild has another `--protocol-id`, of its own routes."""

IPAM_CONTROLLER: Final = (*_LOGGING, *_CERTIFICATES)

EGRESS_CONTROLLER: Final = (*_LOGGING, *_BACKEND, *_CERTIFICATES, FormerFlag("--gc-interval", _nothing))

EGRESS_AGENT: Final = (
    *_LOGGING,
    *_BACKEND,
    _renamed("--fou-port", "egress_port"),
    FormerFlag("--enable-sport-auto", _nothing, boolean=True),
)
"""The agent of a router pod, coil-egress there. Whether the source port is chosen says the Egress, to both ends."""
