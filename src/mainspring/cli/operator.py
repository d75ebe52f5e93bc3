"""Who gives a command."""

import os
from getpass import getuser


def name_operator() -> str:
    """Who gives this command, as audits and ledgers name them. A user of a container may have a number and no name."""
    try:
        return f"user:{getuser()}"
    except (KeyError, OSError):
        return f"user:{os.getuid()}"
