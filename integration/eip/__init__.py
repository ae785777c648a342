"""The EIP gateway from end to end: real programs, a real API server, three nodes on one link, a server outside.

`control_plane` starts etcd, API server and egress-controller on the machine. `world` makes the rest: nodes and pods as
namespaces under a plain CNI of a few routes and one masquerade rule, and on each node the real agent. What a test
trusts: the peer that the server's sockets saw, captures on the ports of the link (`announcement`), `ip` and `nft`.

`pytest integration/eip` starts all of it. `python -m integration.eip` runs tests in the virtual machine, on a kernel
with dummy devices, with the control plane outside.
"""
