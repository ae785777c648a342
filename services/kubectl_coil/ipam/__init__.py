"""`kubectl coil ipam`: who has which address, by the objects of the API server."""
