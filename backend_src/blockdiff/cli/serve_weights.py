"""``blockdiff serve`` and its weights: verified before anything starts, and named to the models.

Knows the command line and the parameters of the served models.
"""

import os
from collections.abc import Callable
from pathlib import Path

from blockdiff.cli.progress import byte_progress
from blockdiff.serving.settings import verification_variable
from blockdiff.weights.identity import (
    NO_MANIFEST,
    WeightsIdentity,
    advice_without_manifest,
    identify,
)


def verify_served_weights(
    folder: Path, flag: bool | None, say: Callable[[str], None]
) -> WeightsIdentity:
    """Check ``folder`` against its manifest unless told not to; ConfigError names bad files.

    ``flag`` is --verify or --no-verify; None leaves it to the environment, then to yes.
    """
    is_wanted = verification_variable(os.environ) if flag is None else flag
    with byte_progress("verifying") as advance:
        found = identify(folder, is_wanted, advance)
    if found.manifest_sha256 == NO_MANIFEST:
        say(advice_without_manifest(folder))
    else:
        say(f"weights {found}")
    return found


def weights_parameters(identity: WeightsIdentity | None) -> dict[str, str]:
    """Parameters of block_diffusion that spare it a second reading; none where nothing is known."""
    if identity is None:
        return {}
    verify = "done" if identity.is_verified else "no"
    return {"verify": verify, "manifest_sha256": identity.manifest_sha256}
