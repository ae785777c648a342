"""coil-egress-controller: makes router pods of Egresses."""
