# Tests: tests/test_values.py, tests/protocols/test_refused_freed.py
"""Named errors. The message is one sentence with the fault, its place and a remedy.

``retryable`` means that the same request may succeed later, unchanged. Wire formats map these
errors to their codes; only Protocols know wire codes.
"""

from __future__ import annotations

from typing import TypeVar

AnyError = TypeVar("AnyError", bound=BaseException)

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}


def escaped(text: str) -> str:
    """Escape each control character (C0, DEL, C1) as ``\\x`` and two hexadecimal digits.

    Error messages that quote a request use it, so that logs and terminals can show them.
    """
    return text if text.isprintable() else text.translate(_CONTROL)


def error_text(error: BaseException) -> str:
    """Return the text of an error, or the name of its class if it has none, as a MemoryError."""
    return str(error) or type(error).__name__


def os_error_text(error: OSError) -> str:
    """Return the text of an error, which begins with the file's name."""
    place = f"{error.filename}: " if error.filename else ""
    return f"{place}{error.strerror or error}"


_DEBIAN = {"archive": "brokerd-archive", "spark": "brokerd-archive", "schemas": "brokerd"}
"""The Debian package with the packages of an extra."""


def install_text(extra: str) -> str:
    """Return how to install the packages of an extra, for each way to install brokerd."""
    package = _DEBIAN.get(extra)
    debian = f"apt install {package}" if package else "not in the Debian packages"
    return f"pip install 'brokerd[{extra}]' (in a working copy: make spark; Debian: {debian})"


class BrokerdError(Exception):
    """Base of every error that brokerd raises on purpose."""

    retryable = False


def without_traceback(error: AnyError) -> AnyError:
    """Return the error without its traceback frames.

    A frame that holds the error is in a cycle with it. Both would stay, with the request and all
    locals, until the garbage collector runs. Use it for an error that is stored, or that has been
    answered.
    """
    error.__traceback__ = error.__context__ = None
    return error


class InvalidName(BrokerdError):
    """A topic or group name is empty, too long, or holds control characters."""


class InvalidRequest(BrokerdError):
    """A request has values that are invalid in every state of the broker."""


class UnknownTopic(BrokerdError):
    """The topic does not exist and this request does not create it."""


class UnknownGroup(BrokerdError):
    """The topic has no such consumer group and this request does not create it."""


class UnknownPartition(BrokerdError):
    """The topic has no such partition."""


class UnknownOffset(BrokerdError):
    """The offset has not been assigned."""


class RecordRemoved(BrokerdError):
    """The record existed and was removed: by retention, a trim, or the deletion of its topic."""


class OldSequence(BrokerdError):
    """A producer's sequence is older than the ones that the broker remembers."""


class NotLeaseOwner(BrokerdError):
    """Another client holds the live lease of the record."""


class LeaseLost(BrokerdError):
    """The lease named by the request is over."""


class RecordTooLarge(BrokerdError):
    """The record is larger than a format or a frame allows."""


class NoSpace(BrokerdError):
    """The disk has no room for the request; nothing of it was applied."""

    retryable = True


class LimitExceeded(BrokerdError):
    """A configured limit is reached."""

    retryable = True


class ShuttingDown(BrokerdError):
    """The broker is stopping and accepts no work."""

    retryable = True


class AuthenticationRequired(BrokerdError):
    """Anonymous lacks the permission; a login may help."""


class Denied(BrokerdError):
    """The principal lacks the permission. The message never reveals whether the resource exists."""


class LoginFailed(BrokerdError):
    """A wrong name, password, key or certificate."""


class LoginThrottled(BrokerdError):
    """Too many logins failed recently; the message has the time of the next attempt."""

    retryable = True


class TooManyLogins(LoginThrottled):
    """Too many logins wait to be checked. It is no failed login."""

    def __init__(self, text: str = "too many logins at once; try again in a second") -> None:
        super().__init__(text)


class UnknownAccount(BrokerdError):
    """The account does not exist."""


class AccountExists(BrokerdError):
    """The account exists already."""


class UnknownKey(BrokerdError):
    """The API key does not exist."""


class UnknownSchema(BrokerdError):
    """The schema or its version does not exist."""


class InvalidSchema(BrokerdError):
    """The definition of a schema is invalid, or its type is unknown."""


class IncompatibleSchema(BrokerdError):
    """A new version of a schema is incompatible with the existing ones."""


class SchemaCheckFailed(BrokerdError):
    """The check of a schema or message failed: it takes too much time or memory, or a package is
    missing.
    """


class StorageFailed(BrokerdError):
    """A write or sync failed; the process must stop and replay (never retried)."""


class DamagedData(BrokerdError):
    """Bytes on disk fail their checksum; the message names file, position and offsets."""


class NewerFormat(BrokerdError):
    """A file was written by a newer brokerd than this one; upgrade to read it."""


class DirectoryLocked(BrokerdError):
    """Another broker owns the data directory."""


class UnsafeFileSystem(BrokerdError):
    """The data directory is on a network file system."""


class ConfigError(BrokerdError):
    """The configuration is wrong; the message names the key, the value and the source."""
