"""docs/ as tests read it: `page` finds the blocks of its pages, and `command` what they say.

`docs/README.md` has the conventions for whoever writes there.
"""
