"""Admission webhooks: what the API server asks before it stores an object, answered over HTTPS by every replica."""
