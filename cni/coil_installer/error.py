class InstallError(Exception):
    """Nothing more can be done; the text is one sentence for the person who reads the pod's log."""
