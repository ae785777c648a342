"""The chart's roles against the calls that its programs made while the other sessions tested them.

Each session leaves its calls in a folder below `build/access` (`integration.cluster.audit_log`). `right` has what the
chart grants, `comparison` what was used of it and what went beyond, `exemption` what no test can show, each with its
reason.
"""
