"""Floating egress addresses, as far as they are coild's affair."""
