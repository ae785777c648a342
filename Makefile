# The only two commands a newcomer needs. Each does all of its own set-up; see integration/bootstrap.py.
# Debian's own, whatever else is on the PATH: the plugin is built with its packages.
PYTHON := /usr/bin/python3

.PHONY: help demo test test-all
help:
	@echo "make demo   two real Kubernetes nodes, pods with addresses, all of them talking, an EIP that moves, a VPC, OpenStack, and egress NAT (KEEP=1)"
	@echo "make test   lint, types, import contracts, unit, kernel, kube-apiserver, egress, cluster"
	@echo "make test-all   the same, and what takes long"

demo:
	@$(PYTHON) integration/bootstrap.py
	@.venv/bin/python -m integration.demo

test:
	@$(PYTHON) integration/bootstrap.py test
	@.venv/bin/python -m integration.verdict

test-all:
	@$(PYTHON) integration/bootstrap.py test-all
	@.venv/bin/python -m integration.verdict --all
