"""coil-egress-controller: router pods for Egresses, and floating egress addresses."""
