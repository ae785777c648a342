"""`make test` and `make test-all`: every session is run, whatever fails, and one verdict is told at the end.

`layer` names the sessions of both. `session` runs them; each leaves its tests' results as JUnit XML, which `result`
reads. `verdict` is what follows from all of them: what failed, what was flaky, what was slow.
"""
