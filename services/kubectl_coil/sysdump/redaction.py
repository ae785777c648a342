"""What of an object stays in a dump that is handed to others. Pure.

    managedFields                       left out
    annotations                         those of Kubernetes and Coil stay; of others the names
    kubectl's last applied configuration   left out: it repeats the object, environment included
    env[].value                         the names stay
    args, command, extraArgs            a flag whose name speaks of a secret keeps its name only

Secrets are not read at all.
"""

import re
from typing import Any, Final

REDACTED: Final = "(redacted)"
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_KNOWN: Final = (
    *("coil.cybozu.com", "egress.coil.cybozu.com", "egressgateway.spidernet.io"),
    *("kubernetes.io", "k8s.io", "meta.helm.sh"),
)
_SECRET_FLAG: Final = re.compile(r"^(--?[\w-]*(?:password|token|secret|credential|key)[\w-]*)=", re.IGNORECASE)


class SecretError(ValueError):
    """The object is a Secret."""


def redact(document: Any) -> Any:
    """A copy without what is nobody's business. Raises SecretError."""
    if isinstance(document, dict) and document.get("kind") in ("Secret", "SecretList"):
        raise SecretError("a Secret is in no dump")
    return _redact(document)


def _redact(value: Any) -> Any:
    if isinstance(value, list):
        return [_redact(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: _redact_field(name, part) for name, part in value.items() if name != "managedFields"}


def _redact_field(name: str, value: Any) -> Any:
    if name == "annotations" and isinstance(value, dict):
        return {key: text if _is_known(key) else REDACTED for key, text in value.items() if key != _LAST_APPLIED}
    if name == "env" and isinstance(value, list):
        return [_redact_variable(each) for each in value]
    if name in ("args", "command", "extraArgs") and isinstance(value, list):
        return [_redact_argument(each) for each in value]
    return _redact(value)


def _redact_variable(variable: Any) -> Any:
    if isinstance(variable, dict) and "value" in variable:
        return {**variable, "value": REDACTED}
    return _redact(variable)


def _redact_argument(argument: Any) -> Any:
    if isinstance(argument, str) and (found := _SECRET_FLAG.match(argument)):
        return f"{found.group(1)}={REDACTED}"
    return argument


def _is_known(key: str) -> bool:
    domain = key.partition("/")[0] if "/" in key else ""
    return any(domain == known or domain.endswith(f".{known}") for known in _KNOWN)
