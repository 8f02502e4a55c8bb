"""Which weights a folder holds, in one hash that can be recorded, and whether that was checked.

Knows manifests and their verification; knows nothing of servers or of tensors.
"""

from dataclasses import dataclass
from pathlib import Path

from blockdiff.errors import ConfigError
from blockdiff.weights.hashing import Progress
from blockdiff.weights.manifest import MANIFEST, read_manifest_with_digest
from blockdiff.weights.verify import verify

NO_MANIFEST = "none"


@dataclass(frozen=True)
class WeightsIdentity:
    """The manifest's SHA-256 (``NO_MANIFEST``: there is none) and whether every file fits it."""

    manifest_sha256: str
    is_verified: bool

    def __str__(self) -> str:
        state = "verified" if self.is_verified else "not verified"
        return f"manifest_sha256={self.manifest_sha256} ({state})"

    def require(self, manifest_sha256: str) -> None:
        """Refuse weights of another manifest than the one named."""
        if self.manifest_sha256 != manifest_sha256:
            raise ConfigError(
                f"manifest_sha256: the weights folder has {self.manifest_sha256}, must have "
                f"{manifest_sha256}; the weights were replaced, or another set was meant"
            )


def identify(
    folder: Path, is_verification_wanted: bool, progress: Progress | None = None
) -> WeightsIdentity:
    """Identity of the weights in ``folder``; one ConfigError line names files that do not fit.

    A folder without a manifest is no error: its identity says so. ``progress`` is called with
    (bytes read, bytes in all).
    """
    if not (folder / MANIFEST).exists():
        return WeightsIdentity(NO_MANIFEST, False)
    if not is_verification_wanted:
        return WeightsIdentity(read_manifest_with_digest(folder)[1], False)
    outcome = verify(folder, progress=progress)
    outcome.refuse()
    return WeightsIdentity(outcome.manifest_sha256, True)


def advice_without_manifest(folder: Path) -> str:
    """What to tell a person whose weights cannot be verified."""
    command = f"blockdiff weights manifest {folder}"
    return f"{folder} has no manifest; to have the weights verified: {command}"
