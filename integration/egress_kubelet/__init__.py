"""Egress NAT with a kubelet: what `integration.egress` leaves to a stand-in, done by the programs of a real node.

`python -m integration.egress_kubelet` (in `__main__`) starts the control plane at native speed (`outside`), with all of
Kubernetes' controllers, and Coil's two. Then it runs the tests on a kernel with Foo-over-UDP, directly or in the
virtual machine. There (`world`) is one node with kubelet, containerd and kube-proxy, on which the chart's DaemonSet
runs coild, and a host outside the cluster. containerd executes the plugin, and the kubelet runs router pods as the
egress-controller has written them.
"""
