"""Kubernetes nodes whose pods are ports of a Neutron, with Coil by Helm."""
