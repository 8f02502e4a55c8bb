"""Every error a user, a file or a peer can cause. Knows nothing of transports or exit codes."""


class BlockdiffError(Exception):
    """Base of all expected errors; its text is one line that can be shown to a user as it is."""


class ConfigError(BlockdiffError):
    """A checkpoint, configuration or command line that cannot work; the text says what to do."""


class RequestError(BlockdiffError):
    """One request is invalid; the text names field, value and allowed range."""


class UnsupportedError(RequestError):
    """A request uses a field of the contract that this model or release cannot honour."""


class CapacityError(BlockdiffError):
    """No room now (slots, queue) or the engine is stopping; the text carries a retry hint."""


class EngineDeadError(BlockdiffError):
    """The engine thread has died; nothing will be answered until the process is restarted."""
