"""What the served models share: start with one clear line on failure, stop without noise."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from blockdiff.errors import BlockdiffError
from blockdiff.serving.errors import log, one_line
from blockdiff.serving.settings import Settings, settings_from_arguments


class ServedModel(ABC):
    """Base of the classes that Triton loads; subclasses fill ``start`` and ``execute``."""

    pb_utils: ClassVar[Any]
    where: ClassVar[str]
    config_file: Path

    def initialize(self, args: dict[str, str]) -> None:
        """Called by Triton once; the model is ready when this returns."""
        self.config_file = Path(args["model_repository"]) / "config.pbtxt"
        try:
            self.start(*settings_from_arguments(args))
        except BlockdiffError as error:
            text = f"{self.where}: {one_line(str(error))}"
            log(self.pb_utils, "error", text)
            raise self.pb_utils.TritonModelException(text) from None

    @abstractmethod
    def start(self, model_config: dict[str, Any], settings: Settings) -> None:
        """Get ready; any BlockdiffError becomes Triton's one line."""

    @abstractmethod
    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Called by Triton with each batch of requests."""
