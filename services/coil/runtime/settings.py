"""The settings that every process has; a process's own settings extend them."""

from dataclasses import dataclass

from coil.runtime.duration import parse_period
from coil.runtime.endpoint import Endpoint, parse_endpoint
from coil.runtime.flag import Group, flag, kind, parse_word
from coil.runtime.log import LOG_LEVELS, LogFormat


def metrics_flag(default: str) -> Endpoint:
    """The `metrics_addr` of a process whose default is `default`, such as ":9386"."""
    return flag(
        default, parse=parse_endpoint, group=Group.PROCESS, help="address of /metrics; without a host, 127.0.0.1"
    )


def health_flag(default: str) -> Endpoint:
    """The `health_addr` of a process whose default is `default`, such as ":9387"."""
    return flag(
        default,
        parse=parse_endpoint,
        group=Group.PROCESS,
        help="address of /healthz and /readyz; without a host, 127.0.0.1",
    )


@kind("auto|json|text")
def parse_format(text: str) -> LogFormat:
    return LogFormat(parse_word(*(known.value for known in LogFormat))(text))


@dataclass(frozen=True, kw_only=True)
class FrameSettings:
    """What the frame needs. Every process gives its own ports."""

    metrics_addr: Endpoint
    health_addr: Endpoint
    log_level: str = flag(
        "info",
        parse=parse_word(*LOG_LEVELS),
        group=Group.PROCESS,
        help="least severe lines to log: " + ", ".join(LOG_LEVELS),
    )
    log_format: LogFormat = flag(
        "auto", parse=parse_format, group=Group.PROCESS, help="json, text, or auto: text on a terminal only"
    )
    stop_timeout: float = flag(
        "10s",
        parse=parse_period,
        group=Group.PROCESS,
        help="how long a graceful stop may take before the process just exits",
    )
