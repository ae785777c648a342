"""Nodes in virtual time, with the product's provisioner and store on an EC2 in memory: churn, and a whole fleet."""
