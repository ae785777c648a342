"""The chart's roles against the calls that its programs made while the other sessions tested them.

Each session leaves its calls in a folder below `build/access` (`integration.cluster.audit_log`), and its results in a
file in `build/results`. `right` has what the chart grants, `forcing_tests` the test that forces each right's use,
`comparison` what was used of it and what went beyond, `exemption` what no call can show, each with its reason.
"""
