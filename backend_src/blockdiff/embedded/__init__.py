"""A tritonserver of our own: found or unpacked, started, watched and stopped.

Knows Triton Inference Server's processes and flags; knows nothing of engines or tokenizers.
"""

from blockdiff.embedded.installation import TritonInstallation, find_installation
from blockdiff.embedded.server import ServerError, ServerPorts, TritonServer

__all__ = [
    "ServerError",
    "ServerPorts",
    "TritonInstallation",
    "TritonServer",
    "find_installation",
]
