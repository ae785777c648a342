"""Neutron and Octavia themselves, on this machine, and coil-raven in front of them."""
