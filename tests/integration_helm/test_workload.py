"""What the programs may do on their nodes, as the chart starts them, and that they understand what they are told."""

import json
from ipaddress import ip_network
from typing import Any, Final

import pytest

from coil.crd.eip_limit import NamespaceLimits
from coil.crd.names import SLICE_ENDPOINTS
from coil.runtime.flag import Endpoint, parse_endpoint
from coil_installer.settings import check_conf, check_conflist, parse_folders
from integration.access.right import RAVEN_VALUES, chart_rights
from integration.helm.chart import Document, profile_names, render
from integration.helm.program import HelmError
from tests.integration_helm.everything import (
    CLEANUP,
    EVERYTHING,
    ON_POD_NETWORK,
    SETTINGS,
    all_containers,
    names,
    parse,
    pick,
    pod_spec,
    programs,
    workloads,
)

ROOT_CAPABILITIES = {
    ("coild", "coil-installer"): [],
    ("coild", "coil-modules"): ["SYS_MODULE"],
    ("coild", "coild"): ["NET_ADMIN", "SYS_ADMIN"],
    ("coil-egress-agent-node", "coil-egress-agent-node"): ["NET_ADMIN", "NET_RAW"],
    ("coil-cleanup", "coil-installer"): [],
    ("coil-cleanup", "coil-egress-agent-node"): ["NET_ADMIN", "NET_RAW"],
    ("coil-cleanup", "coil-sysctls"): ["NET_ADMIN"],
}
"""By workload and container: who is root, and what more than others that is."""
HEARS_PODS = {"coild": ["NET_BROADCAST"]}
"""With addresses of network interfaces: what others change in pods' namespaces is put right, too."""
HERE = "127.0.0.1"


OTHERS = {"everything": EVERYTHING, "pod-network": ON_POD_NETWORK, "cleanup": CLEANUP}


@pytest.fixture(params=[*profile_names(), *OTHERS])
def documents(request: pytest.FixtureRequest) -> list[Document]:
    """Of each profile, and of values that no profile has."""
    choice: str = request.param
    return render(OTHERS[choice]) if choice in OTHERS else render(None, choice)


def test_nobody_has_more_rights_than_needed(documents: list[Document], request: pytest.FixtureRequest) -> None:
    more = HEARS_PODS if request.node.callspec.params["documents"] == "aws-eni" else {}
    for workload in workloads(documents):
        for name, container in all_containers(workload).items():
            folders = (workload["metadata"]["name"], name)
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"], folders
            assert not security["allowPrivilegeEscalation"], folders
            assert not security["privileged"], folders
            assert security["seccompProfile"] == {"type": "RuntimeDefault"}, folders
            assert security["capabilities"]["drop"] == ["ALL"], folders
            added = security["capabilities"].get("add", [])
            if folders in ROOT_CAPABILITIES:
                assert security["runAsUser"] == 0, folders
                assert set(added) <= {*ROOT_CAPABILITIES[folders], *more.get(name, [])}, folders
            else:
                assert security["runAsNonRoot"], folders
                assert security["runAsUser"] > 0, folders
                assert added == [], folders


def test_who_is_root_has_these_capabilities() -> None:
    found = {
        (workload["metadata"]["name"], name): container["securityContext"]["capabilities"].get("add", [])
        for documents in (render(EVERYTHING), render(CLEANUP))
        for workload in workloads(documents)
        for name, container in all_containers(workload).items()
        if container["securityContext"]["runAsUser"] == 0
    }
    assert found == ROOT_CAPABILITIES


SPC: Final = {"level": "s0", "type": "spc_t"}
"""A super-privileged container (container-selinux): one of container_t may not write to the node's folders."""
COILD_T: Final = {"level": "s0", "type": "coild_t"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {"coild": SPC, "coil-egress-agent-node": SPC}),
        (
            {"coild": {"seLinuxOptions": {"type": "coild_t"}}, "eip": {"seLinuxOptions": None}},
            {"coild": COILD_T, "coil-egress-agent-node": None},
        ),
    ],
)
def test_who_writes_to_the_node_may_do_so_where_it_enforces_selinux(
    values: dict[str, Any], expected: dict[str, object]
) -> None:
    found: dict[str, list[object]] = {}
    for base in (EVERYTHING, CLEANUP):
        merged = base | {key: base.get(key, {}) | value for key, value in values.items()}
        for workload in workloads(render(merged)):
            for container in all_containers(workload).values():
                security = container["securityContext"]
                if security["runAsUser"] == 0:
                    found.setdefault(workload["metadata"]["name"], []).append(security.get("seLinuxOptions"))
                else:
                    assert "seLinuxOptions" not in security
    assert {name: set(map(str, options)) for name, options in found.items() if name != "coil-cleanup"} == {
        name: {str(options)} for name, options in expected.items()
    }
    assert found["coil-cleanup"] == [expected["coild"], expected["coil-egress-agent-node"], expected["coild"]]


def test_modules_are_loaded_by_choice_only() -> None:
    coild = pick(render(EVERYTHING), "DaemonSet", "coild")
    [mount] = all_containers(coild)["coil-modules"]["volumeMounts"]
    assert (mount["mountPath"], mount["readOnly"]) == ("/lib/modules", True)
    coild = pick(render(ON_POD_NETWORK), "DaemonSet", "coild")
    assert "coil-modules" not in all_containers(coild)
    assert "modules" not in {volume["name"] for volume in pod_spec(coild)["volumes"]}


def test_every_container_says_what_it_takes(documents: list[Document]) -> None:
    for workload in workloads(documents):
        for name, container in all_containers(workload).items():
            assert set(container["resources"]["requests"]) == {"cpu", "memory"}, name
            assert "memory" in container["resources"]["limits"], name


def test_no_pod_sees_more_of_its_node_than_its_work(documents: list[Document]) -> None:
    for workload in workloads(documents):
        spec = pod_spec(workload)
        assert not spec.get("hostPID"), workload["metadata"]["name"]
        assert not spec.get("hostIPC"), workload["metadata"]["name"]
        mounted = {
            mount["name"]
            for container in all_containers(workload).values()
            for mount in container.get("volumeMounts", ())
        }
        assert mounted == {volume["name"] for volume in spec.get("volumes", ())}, workload["metadata"]["name"]


def test_what_coild_has_of_its_node() -> None:
    coild = pick(render(), "DaemonSet", "coild")
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod_spec(coild)["volumes"]}
    mounts = {
        name: {mount["mountPath"]: paths[mount["name"]] for mount in container["volumeMounts"]}
        for name, container in all_containers(coild).items()
    }
    assert mounts["coil-installer"] == {
        "/host/opt/cni/bin": "/opt/cni/bin",
        "/host/etc/cni/net.d": "/etc/cni/net.d",
    }
    assert mounts["coild"] == {
        "/run/coil": "/run/coil",
        "/host/proc/sys/net": "/proc/sys/net",
        "/run/netns": "/run/netns",
        "/var/run/netns": "/run/netns",
    }
    assert mounts["coil-modules"] == {"/lib/modules": "/lib/modules"}
    propagated = {
        mount["mountPath"]
        for mount in all_containers(coild)["coild"]["volumeMounts"]
        if mount.get("mountPropagation") == "HostToContainer"
    }
    assert propagated == {"/run/netns", "/var/run/netns"}


def test_what_the_agent_of_gateways_has_of_its_node() -> None:
    agent = pick(render({"eip.enabled": True}), "DaemonSet", "coil-egress-agent-node")
    paths = {volume["name"]: volume["hostPath"] for volume in pod_spec(agent)["volumes"]}
    [container] = all_containers(agent).values()
    mounts = {mount["mountPath"]: paths[mount["name"]] for mount in container["volumeMounts"]}
    assert mounts == {
        "/host/proc/sys/net": {"path": "/proc/sys/net", "type": "Directory"},
        "/run/coil/eip": {"path": "/run/coil/eip", "type": "DirectoryOrCreate"},
        "/run/xtables.lock": {"path": "/run/xtables.lock", "type": "FileOrCreate"},
    }


def test_the_programs_understand_their_flags_and_are_asked_where_they_listen(documents: list[Document]) -> None:
    for workload in workloads(documents):
        spec = pod_spec(workload)
        for name, container in all_containers(workload).items():
            if name not in SETTINGS or "--cleanup" in container["args"]:
                continue
            settings = parse(container)
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            assert ports["metrics"] == settings.metrics_addr.port
            for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
                asked = container[probe]["httpGet"]
                assert (asked["path"], asked["port"]) == (path, settings.health_addr.port)
                # The kubelet asks localhost of the node, or else the pod's address.
                assert asked.get("host") == (HERE if spec.get("hostNetwork") else None)
                assert settings.health_addr.host == (HERE if spec.get("hostNetwork") else "0.0.0.0")


def test_metrics_stay_on_the_node_until_they_are_asked_for() -> None:
    assert {settings.metrics_addr.host for settings in programs(render()).values()} == {HERE}
    assert {settings.metrics_addr.host for settings in programs(render(EVERYTHING)).values()} == {"0.0.0.0"}


def test_pages_stay_on_the_node_whatever_is_asked_for() -> None:
    documents = render(EVERYTHING)
    hosts = {
        name: settings.inspect_addr.host
        for name, settings in programs(documents).items()
        if hasattr(settings, "inspect_addr")
    }
    assert hosts == dict.fromkeys(("coild", "coil-ipam-controller", "coil-raven"), HERE)
    variables = [
        variable["value"]
        for workload in workloads(documents)
        for container in all_containers(workload).values()
        for variable in container.get("env", ())
        if variable["name"] == "COIL_INSPECT_PAGE_ADDR"
    ]
    assert {parse_endpoint(text) for text in variables} == {Endpoint(HERE, 9383)}


def test_the_nodes_processes_are_seen_if_asked_for() -> None:
    for asked in (False, True):
        coild = pick(render({"coild": {"hostPID": asked}}), "DaemonSet", "coild")
        assert pod_spec(coild).get("hostPID", False) is asked
        capabilities = all_containers(coild)["coild"]["securityContext"]["capabilities"]["add"]
        assert ("SYS_PTRACE" in capabilities) is asked


def test_programs_that_meet_are_told_the_same() -> None:
    values: dict[str, object] = {
        "egress": {"port": 5999},
        "eip": {"enabled": True, "leaseNamespace": "leases"},
        "coild": {"ports": {"health": 19385}},
    }
    documents = render(values, namespace="coil-system")
    settings = programs(documents)
    assert settings["coil-egress-controller"].egress_port == settings["coild"].egress_port == 5999
    assert settings["coild"].health_addr == Endpoint(HERE, 19385)
    spaces = {settings[name].eip_lease_namespace for name in ("coil-egress-controller", "coil-egress-agent-node")}
    assert spaces == {"leases"}
    assert names(documents, "Namespace") == spaces
    # A rollback that has it again must not meet one that is still ending.
    assert pick(documents, "Namespace", "leases")["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    for name in ("coil-ipam-controller", "coil-egress-controller"):
        assert settings[name].lease_namespace == "coil-system"


def test_controllers_survive_a_node_and_an_upgrade() -> None:
    documents = render()
    for name in ("coil-ipam-controller", "coil-egress-controller"):
        deployment = pick(documents, "Deployment", name)
        assert deployment["spec"]["replicas"] == 2
        # Both want the same ports of their node.
        assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
        affinity = pod_spec(deployment)["affinity"]["podAntiAffinity"]
        (rule,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        selectors = (
            rule["labelSelector"]["matchLabels"],
            pick(documents, "PodDisruptionBudget", name)["spec"]["selector"]["matchLabels"],
            pick(documents, "Service", name)["spec"]["selector"],
        )
        for selector in selectors:
            assert selector.items() <= labels.items()
        assert pod_spec(deployment)["priorityClassName"] == "system-cluster-critical"


def test_one_replica_has_no_budget_that_would_keep_its_node() -> None:
    assert names(render({"ipam": {"replicas": 1}}), "PodDisruptionBudget") == {"coil-egress-controller"}


def installer_environment(documents: list[Document]) -> dict[str, str]:
    container = all_containers(pick(documents, "DaemonSet", "coild"))["coil-installer"]
    return {entry["name"]: entry["value"] for entry in container["env"]}


def test_the_installer_puts_a_configuration_that_calls_coild() -> None:
    after = [{"type": "bandwidth", "capabilities": {"bandwidth": True}}]
    documents = render({"cni": {"after": after}, "coild": {"runDirectory": "/run/elsewhere"}})
    environment = installer_environment(documents)
    check_conflist(environment["CNI_NETCONF"])
    assert parse_folders(environment).conf_name == "10-coil.conflist"
    (socket,) = {str(settings.socket) for name, settings in programs(documents).items() if name == "coild"}
    plugins = json.loads(environment["CNI_NETCONF"])["plugins"]
    assert plugins == [{"type": "coil", "socket": socket, "capabilities": {"portMappings": True}}, *after]


@pytest.mark.parametrize(
    ("cni", "version", "offered"),
    [
        ({}, "1.0.0", ["1.0.0", "1.1.0"]),
        ({"version": None}, "1.0.0", ["1.0.0", "1.1.0"]),  # helm upgrade --reuse-values
        ({"after": [{"type": "bandwidth"}]}, "1.0.0", None),
        ({"version": "0.4.0"}, "0.4.0", None),
        ({"version": "1.1.0"}, "1.1.0", None),
    ],
)
def test_the_version_of_the_configuration(cni: Document, version: str, offered: list[str] | None) -> None:
    text = installer_environment(render({"cni": cni}))["CNI_NETCONF"]
    check_conflist(text)
    conf = json.loads(text)
    assert (conf["cniVersion"], conf.get("cniVersions")) == (version, offered)


def test_kuryrs_places_and_names() -> None:
    folder = "/usr/libexec/kubernetes/kubelet-plugins/net/exec"
    cni = {"confName": "10-kuryr.conf", "pluginName": "kuryr", "confDir": folder, "binDir": folder}
    documents = render({"cni": {**cni, "networkName": "kuryr-network"}}, "neutron")
    environment = installer_environment(documents)
    check_conf(environment["CNI_NETCONF"], plugin_name="kuryr")
    folders = parse_folders(environment)
    assert (folders.conf_name, folders.plugin_name) == ("10-kuryr.conf", "kuryr")
    conf = json.loads(environment["CNI_NETCONF"])
    assert (conf["name"], conf["type"]) == ("kuryr-network", "kuryr")
    assert "cniVersion" not in conf, "which is 0.1.0"
    volumes = pick(documents, "DaemonSet", "coild")["spec"]["template"]["spec"]["volumes"]
    assert {each["hostPath"]["path"] for each in volumes if each["name"].startswith("cni-")} == {folder}
    with pytest.raises(HelmError, match=r"a cni.confName that ends in .conflist"):
        render({"cni": {**cni, "after": [{"type": "bandwidth"}]}})


@pytest.mark.parametrize(
    ("cni", "served"),
    [
        ({}, True),
        ({"hostPorts": None}, True),  # helm upgrade --reuse-values, from a chart that did not have it
        ({"hostPorts": False}, False),
        ({"after": [{"type": "portmap", "capabilities": {"portMappings": True}}]}, False),
        ({"after": [{"type": "bandwidth"}]}, True),
    ],
)
def test_coild_serves_host_ports_unless_another_does(cni: Document, served: bool) -> None:
    plugins = json.loads(installer_environment(render({"cni": cni}))["CNI_NETCONF"])["plugins"]
    assert [plugin["type"] for plugin in plugins if "portMappings" in plugin.get("capabilities", {})] == (
        ["coil"] if served else [plugin["type"] for plugin in cni.get("after", [])]
    )


@pytest.mark.parametrize(("value", "verified"), [(True, True), (None, True), (False, False)])
def test_coild_verifies_sources_unless_told_not_to(value: bool | None, verified: bool) -> None:
    """None as with `helm upgrade --reuse-values` from a chart that did not have it."""
    assert programs(render({"coild": {"verifySource": value}}))["coild"].verify_source is verified


@pytest.mark.parametrize(
    ("eip", "ipam", "coild", "verified"),
    [
        (None, True, True, False),
        (None, True, False, True),
        (None, False, True, True),
        (True, True, True, True),
        (False, False, True, False),
    ],
)
def test_the_eip_gateway_verifies_sources_where_coild_does_not(
    eip: bool | None, ipam: bool, coild: bool, verified: bool
) -> None:
    values = {
        "eip": {"enabled": True, "verifySource": eip},
        "egress": {"enabled": True},
        "ipam": {"enabled": ipam},
        "cni": {"before": [] if ipam else [{"type": "bridge"}]},
        "coild": {"verifySource": coild},
    }
    assert programs(render(values))["coil-egress-agent-node"].verify_source is verified


def test_the_controller_knows_what_agents_are_told_of_the_clusters_networks() -> None:
    values = {"eip": {"enabled": True, "clusterCIDR": ["10.96.0.0/12", "fd00:96::/108"]}, "egress": {"enabled": True}}
    found = programs(render(values))
    controller, agent = found["coil-egress-controller"], found["coil-egress-agent-node"]
    assert controller.eip_cluster_cidr == agent.cluster_cidr
    assert agent.cluster_cidr == (ip_network("10.96.0.0/12"), ip_network("fd00:96::/108"))
    assert controller.cluster_networks == agent.cluster_networks
    assert controller.cluster_networks is not None


@pytest.mark.parametrize("given", [["^cali", "^br-"], [], None])
def test_interfaces_on_which_no_address_is_announced(given: list[str] | None) -> None:
    values = {"eip": {"enabled": True, "announcedInterfacesToExclude": given}, "egress": {"enabled": True}}
    agent = programs(render(values))["coil-egress-agent-node"]
    assert [pattern.pattern for pattern in agent.announced_interfaces_to_exclude] == (given or [])


def test_the_controller_and_the_agents_have_the_same_limits() -> None:
    given = {
        "policiesPerNamespace": 7,
        "networksPerNamespace": 1000000,
        "policiesPerGateway": 9,
        "endpointsPerSlice": 11,
    }
    for limits in (given, None):
        found = programs(render({"eip": {"enabled": True, "limits": limits}, "egress": {"enabled": True}}))
        controller, agent = found["coil-egress-controller"], found["coil-egress-agent-node"]
        assert controller.namespace_limits == agent.namespace_limits
        if limits is None:  # helm upgrade --reuse-values
            assert controller.namespace_limits == NamespaceLimits()
        else:
            assert controller.namespace_limits == NamespaceLimits(policies=7, networks=1000000)
            assert (controller.policies_per_gateway, controller.slice_endpoints) == (9, 11)


def test_a_former_charts_limits_lack_that_of_slices() -> None:
    limits = {"policiesPerNamespace": 7, "networksPerNamespace": 8, "policiesPerGateway": 9, "endpointsPerSlice": None}
    found = programs(render({"eip": {"enabled": True, "limits": limits}, "egress": {"enabled": True}}))
    assert found["coil-egress-controller"].slice_endpoints == SLICE_ENDPOINTS


@pytest.mark.parametrize(("value", "allowed"), [(False, False), (None, False), (True, True)])
def test_egresses_give_router_pods_privileges_only_if_told_so(value: bool | None, allowed: bool) -> None:
    rendered = render({"egress": {"allowPrivilegedTemplates": value}})
    assert programs(rendered)["coil-egress-controller"].allow_privileged_templates is allowed


def test_behind_another_plugin_coil_comes_after_it_and_gives_no_addresses() -> None:
    documents = render(None, "egress-only")
    environment = installer_environment(documents)
    check_conflist(environment["CNI_NETCONF"])
    assert [plugin["type"] for plugin in json.loads(environment["CNI_NETCONF"])["plugins"]] == ["cilium-cni", "coil"]
    settings = programs(documents)["coild"]
    assert not settings.enable_ipam
    assert settings.enable_egress


def test_a_node_is_cleaned_when_its_programs_are_gone() -> None:
    documents = render(CLEANUP)
    assert names(documents, "DaemonSet", "Deployment") == {"coil-cleanup", "coil-test-server"}
    cleanup = pick(documents, "DaemonSet", "coil-cleanup")
    assert pod_spec(cleanup)["hostNetwork"]
    wanted = {port["containerPort"] for port in all_containers(cleanup)["done"]["ports"]}
    before = programs(render({"eip": {"enabled": True}}))
    assert wanted == {before[name].health_addr.port for name in ("coild", "coil-egress-agent-node")}


def test_openstack_is_cleaned_by_the_account_and_the_flags_that_filled_it() -> None:
    before, after = render({"raven": RAVEN_VALUES}), render(CLEANUP)
    raven, job = pick(before, "Deployment", "coil-raven"), pick(after, "Job", "coil-raven-cleanup")
    container = all_containers(job)["coil-raven-cleanup"]
    assert container["command"] == ["coil-raven", "cleanup"]
    assert pod_spec(job)["serviceAccountName"] == pod_spec(raven)["serviceAccountName"]
    assert pod_spec(job)["volumes"] == pod_spec(raven)["volumes"]
    filled, cleaning = parse(all_containers(raven)["coil-raven"]), parse(container)
    for name in ("lease_namespace", "clouds_file", "cloud", "cluster_name", "router", "service_cidrs"):
        assert getattr(cleaning, name) == getattr(filled, name), name
    assert {*chart_rights(before)} & {*chart_rights(after)} >= {
        right for right in chart_rights(before) if right.account == "coil-raven"
    }
    assert "coil-raven-cleanup" not in names(render({"cleanup": {"enabled": True}}), "Job")


def test_a_digest_names_the_image() -> None:
    digest = "sha256:" + "0" * 64
    documents = render({"image": {"repository": "example.com/coil", "digest": digest}})
    images = {
        container["image"] for workload in workloads(documents) for container in all_containers(workload).values()
    }
    assert images == {f"example.com/coil@{digest}"}


def test_an_upgrade_may_reuse_values_of_a_chart_that_did_not_have_all_of_them() -> None:
    # `helm upgrade --reuse-values` keeps the former chart's defaults: null is a value that it did not have.
    assert programs(render({"egress": {"failOpen": None}})) == programs(render())
    assert programs(render({"egress": {"failOpen": True}}))["coild"].egress_fail_open
    former = {"raven": {"enabled": True, "portPoolSize": None, "portCooling": None}}
    assert programs(render(former)) == programs(render({"raven": {"enabled": True}}))
