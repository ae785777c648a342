"""Kubernetes nodes that are instances in a VPC, with Coil by Helm and addresses of their network interfaces."""
