"""`blockdiff-client chat | generate | health`: the client library on a command line.

Exit codes: 0 done, 2 bad usage or bad input, 1 anything else.
"""

from .main import main

__all__ = ["main"]
