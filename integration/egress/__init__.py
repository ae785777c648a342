"""Egress NAT from end to end: real programs, API server and kube-proxy rules, with packet captures as the oracle.

`python -m integration.egress` (in `__main__`) starts the control plane at native speed (`outside`): etcd, API server,
controllers, ipam-controller, egress-controller. Then it runs the tests on a kernel with Foo-over-UDP, directly or in
the virtual machine, and tells them by a file (`description`) where the API server is.

The tests make the rest (`world`): two nodes on a bridge, each with coild and kube-proxy, and a host outside the
cluster. `kubelet` runs the API server's pods: a sandbox for each, wired by the real plugin, and in router pods the real
agent with one capability. Emulated processors are slow: bounds are generous, processes few, and one guest serves the
session.
"""
