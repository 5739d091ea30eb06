"""Exception classes. Each is onegraph's own and, where one fits, a builtin's subclass too.

They live in Python, not in the native module: a class with two bases cannot be made through the
stable ABI.
"""

from onegraph.printable import printable

__all__ = [
    "ArgumentError",
    "CancelledError",
    "ClosedError",
    "ContextError",
    "DeviceError",
    "Error",
    "FileError",
    "InternalError",
    "ModelError",
    "OutOfMemoryError",
]


class Error(Exception):
    """Base class of onegraph's exceptions. Exceptions from your own code, such as a progress
    function or a Ctrl-C handler, pass through unchanged.

    Its text may quote a file. `str` removes whatever could control a terminal, so tracebacks are
    safe to print in any program; `args` has the original.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class ModelError(Error, ValueError):
    """The model file, its tokenizer or its chat template is damaged, hostile or not supported."""


class ArgumentError(Error, ValueError):
    """An argument is out of range or of the wrong form."""


class ContextError(Error, ValueError):
    """A prompt does not fit the context; the message names both lengths."""


class OutOfMemoryError(Error, MemoryError):
    """Host or device memory is, or would be, too small; the message says what would fit."""


class DeviceError(Error, RuntimeError):
    """A device, driver or compiler is missing or failed."""


class FileError(Error, OSError):
    """A file could not be read, written or downloaded."""


class ClosedError(Error, RuntimeError):
    """The object was closed, or the process forked."""


class CancelledError(Error):
    """The request was cancelled before it finished."""


class InternalError(Error, RuntimeError):
    """A bug in onegraph."""
