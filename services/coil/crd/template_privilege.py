"""What the template of router pods may not ask for, unless an admin lets it: privileges beyond those of router pods.

coil-egress-controller makes the pods with its own rights, on behalf of whoever may write Egresses. So whatever judges
pods by their user, such as a policy engine, sees the controller in the place of a tenant. What is refused is what the
level "baseline" of the Pod Security Standards forbids (of Kubernetes 1.34, on all versions), but for NET_ADMIN, which
router pods have anyway, and for sysctls, which kubelets judge. Source: the table of that level in Kubernetes' docs,
"Pod Security Standards", and for annotations the code of k8s.io/pod-security-admission.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from coil.crd.validation import FieldError

CAPABILITIES: Final = frozenset(
    {
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP"),
        *("SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
        "NET_ADMIN",
    }
)
"""Those that a container may add: what the baseline lets it have, and what makes a router pod."""
SELINUX_TYPES: Final = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
PROFILES: Final = ("RuntimeDefault", "Localhost")
"""The types of profiles of seccomp and AppArmor."""
PROFILE_ANNOTATIONS: Final = (
    "container.apparmor.security.beta.kubernetes.io/",
    # Of API servers before 1.27.
    "container.seccomp.security.alpha.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
)
"""Prefixes of a pod's annotations of which the API server or the kubelet makes such a profile. The rest of the key is
the name of a container, or `pod`.
"""

_DEFAULT_PROFILES: Final = ("", "runtime/default", "docker/default")
_LOCAL_PROFILE: Final = "localhost/"
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_HOOKS: Final = ("postStart", "preStop")
_NETWORK_ACTIONS: Final = ("httpGet", "tcpSocket")
_CONTAINERS: Final = ("initContainers", "containers", "ephemeralContainers")
_WHY: Final = "would run with rights that the Egress's author may not have; an admin allows it with {flag}"
FLAG: Final = "--allow-privileged-templates"

Document = Mapping[str, Any]


def validate_privileges(template: Document, *, path: str) -> Iterator[FieldError]:
    """Each field of a PodTemplateSpec that asks for more than a router pod has. What is malformed is passed over: the
    API server judges it when the Deployment is made.
    """
    annotations = _mapping(_mapping(template.get("metadata")).get("annotations"))
    yield from _validate_annotations(annotations, path=f"{path}.metadata.annotations")
    spec = _mapping(template.get("spec"))
    path = f"{path}.spec"
    for field in ("hostPID", "hostIPC"):
        if spec.get(field):
            yield _refuse(f"{path}.{field}", "must not be true")
    yield from _validate_context(_mapping(spec.get("securityContext")), path=f"{path}.securityContext")
    for index, volume in enumerate(_sequence(spec.get("volumes"))):
        if _mapping(volume).get("hostPath") is not None:
            yield _refuse(f"{path}.volumes[{index}].hostPath", "must not be given")
    for field in _CONTAINERS:
        for index, container in enumerate(_sequence(spec.get(field))):
            yield from _validate_container(_mapping(container), path=f"{path}.{field}[{index}]")


def _validate_annotations(annotations: Document, *, path: str) -> Iterator[FieldError]:
    for key, value in annotations.items():
        if not key.startswith(PROFILE_ANNOTATIONS):
            continue
        if value not in _DEFAULT_PROFILES and not str(value).startswith(_LOCAL_PROFILE):
            yield _refuse(f"{path}[{key}]", f"{value!r} must be runtime/default, or begin with {_LOCAL_PROFILE}")


def _validate_container(container: Document, *, path: str) -> Iterator[FieldError]:
    lifecycle = _mapping(container.get("lifecycle"))
    for field in _PROBES:
        yield from _validate_action(_mapping(container.get(field)), path=f"{path}.{field}")
    for field in _HOOKS:
        yield from _validate_action(_mapping(lifecycle.get(field)), path=f"{path}.lifecycle.{field}")
    for index, port in enumerate(_sequence(container.get("ports"))):
        if _mapping(port).get("hostPort"):
            yield _refuse(f"{path}.ports[{index}].hostPort", "must not be given")
    context = _mapping(container.get("securityContext"))
    path = f"{path}.securityContext"
    if context.get("privileged"):
        yield _refuse(f"{path}.privileged", "must not be true")
    for index, name in enumerate(_sequence(_mapping(context.get("capabilities")).get("add"))):
        if str(name).removeprefix("CAP_") not in CAPABILITIES:
            yield _refuse(f"{path}.capabilities.add[{index}]", f"{name!r} must not be added")
    if context.get("procMount") not in (None, "", "Default"):
        yield _refuse(f"{path}.procMount", f"{context['procMount']!r} must be Default")
    yield from _validate_context(context, path=path)


def _validate_action(handler: Document, *, path: str) -> Iterator[FieldError]:
    """Kubelets carry out probes and hooks, from the node's network: without a host, on the pod itself."""
    for action in _NETWORK_ACTIONS:
        if _mapping(handler.get(action)).get("host"):
            yield _refuse(f"{path}.{action}.host", "must not be given")


def _validate_context(context: Document, *, path: str) -> Iterator[FieldError]:
    """What pods and containers have in common."""
    for field in ("seccompProfile", "appArmorProfile"):
        profile = _mapping(context.get(field)).get("type")
        if profile is not None and profile not in PROFILES:
            yield _refuse(f"{path}.{field}.type", f"{profile!r} must be one of {', '.join(PROFILES)}")
    selinux = _mapping(context.get("seLinuxOptions"))
    if (selinux.get("type") or "") not in SELINUX_TYPES:
        yield _refuse(f"{path}.seLinuxOptions.type", f"{selinux['type']!r} must be one of containers")
    for field in ("user", "role"):
        if selinux.get(field):
            yield _refuse(f"{path}.seLinuxOptions.{field}", "must not be given")
    if _mapping(context.get("windowsOptions")).get("hostProcess"):
        yield _refuse(f"{path}.windowsOptions.hostProcess", "must not be true")


def _refuse(path: str, rule: str) -> FieldError:
    return FieldError(path, f"{rule}: a router pod {_WHY.format(flag=FLAG)}")


def _mapping(value: Any) -> Document:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()
