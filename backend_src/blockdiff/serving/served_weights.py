"""What a served model says of its weights: which manifest, whether verified, of which family.

Knows the settings and Triton's metrics; verification itself is ``blockdiff.weights``'.
"""

from collections.abc import Callable, Mapping
from typing import Any

from blockdiff.serving.errors import log
from blockdiff.serving.progress import LoggedProgress
from blockdiff.serving.settings import Settings
from blockdiff.weights.identity import (
    NO_MANIFEST,
    WeightsIdentity,
    advice_without_manifest,
    identify,
)

METRIC = "blockdiff_model_info"


def identify_weights(settings: Settings, say: Callable[[str], None]) -> WeightsIdentity:
    """Check the weights as the settings ask, before they are read; logs their identity.

    Raises ConfigError when a file does not fit the manifest, or the manifest is not the one that
    the settings name. Weights that ``blockdiff serve`` has verified are not read again.
    """
    progress = LoggedProgress("verifying weights", say)
    found = identify(settings.model, settings.verify == "yes", progress)
    if settings.manifest_sha256 is not None:
        found.require(settings.manifest_sha256)
    if settings.verify == "done" and found.manifest_sha256 != NO_MANIFEST:
        found = WeightsIdentity(found.manifest_sha256, True)
    if found.manifest_sha256 == NO_MANIFEST:
        say(advice_without_manifest(settings.model))
    say(f"weights {settings.model}: {found}")
    return found


class ModelInfoMetric:
    """A gauge that is always 1 and whose labels tell what is served."""

    def __init__(self, pb_utils: Any, identity: WeightsIdentity, facts: Mapping[str, str]) -> None:
        labels = {
            "model": "block_diffusion",
            "manifest_sha256": identity.manifest_sha256,
            "verified": "yes" if identity.is_verified else "no",
            **facts,
        }
        # A server without metrics refuses to make one; it serves all the same.
        try:
            self._family = pb_utils.MetricFamily(
                name=METRIC,
                description="What is served; always 1, the labels tell",
                kind=pb_utils.MetricFamily.GAUGE,
            )
            self._metric = self._family.Metric(labels=labels)
            self._metric.set(1.0)
        except Exception as error:
            log(pb_utils, "warn", f"block_diffusion: no metric {METRIC} ({error})")
