# The only two commands a newcomer needs. Each does all of its own set-up; see integration/bootstrap.py.
PYTHON := $(firstword $(wildcard /usr/bin/python3.11) python3)

.PHONY: help demo test
help:
	@echo "make demo   two real Kubernetes nodes, pods with addresses, all of them talking, an EIP that moves, and egress NAT (KEEP=1)"
	@echo "make test   everything: lint, types, import contracts, unit, kernel, kube-apiserver, egress, cluster"

demo:
	@$(PYTHON) integration/bootstrap.py
	@.venv/bin/python -m integration.demo

test:
	@$(PYTHON) integration/bootstrap.py test
	@.venv/bin/python -m nox
