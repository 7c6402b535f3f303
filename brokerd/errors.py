# Tests: tests/test_values.py, tests/protocols/test_refused_freed.py
"""Named errors. Each says what went wrong, where, and what to do, in one sentence.

``retryable`` tells a client that the same request may succeed later, unchanged.
Wire formats map these to their own codes; nothing below a Protocol knows a wire code.
"""

from __future__ import annotations

from typing import TypeVar

AnyError = TypeVar("AnyError", bound=BaseException)

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}


def escaped(text: str) -> str:
    """The text with ``\\x`` and two hexadecimal digits for each control character (C0, DEL, C1).

    For what errors repeat of a request, so that logs and terminals may show it.
    """
    return text if text.isprintable() else text.translate(_CONTROL)


def error_text(error: BaseException) -> str:
    """Return the text of an error, or the name of its class if it has none, as a MemoryError."""
    return str(error) or type(error).__name__


class BrokerdError(Exception):
    """Base of every error that brokerd raises on purpose."""

    retryable = False


def without_frames(error: AnyError) -> AnyError:
    """The error, which holds none of the frames any more that it went through.

    For who keeps an error, and for who has answered one: a frame that knows the error is held by
    it, and both stay until the cycle collector comes, with the request and all else in the frames.
    """
    error.__traceback__ = error.__context__ = None
    return error


class InvalidName(BrokerdError):
    """A topic or group name is empty, too long, or holds control characters."""


class InvalidRequest(BrokerdError):
    """A request's values make no sense, whatever the state of the broker."""


class UnknownTopic(BrokerdError):
    """The topic does not exist and this request does not create it."""


class UnknownGroup(BrokerdError):
    """The topic has no such consumer group and this request does not create it."""


class UnknownPartition(BrokerdError):
    """The topic has no such partition."""


class UnknownOffset(BrokerdError):
    """The offset is not one that has been assigned."""


class RecordRemoved(BrokerdError):
    """The record was there once and is removed: by retention, a trim, or its topic's deletion."""


class OldSequence(BrokerdError):
    """A producer's sequence is older than its newest, and not remembered any more."""


class NotLeaseOwner(BrokerdError):
    """Somebody else holds the live lease of the record."""


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
    """The broker is stopping and takes no new work."""

    retryable = True


class AuthenticationRequired(BrokerdError):
    """Anonymous may not do this; somebody who logs in might."""


class Denied(BrokerdError):
    """The principal may not do this. The message never says whether what it names exists."""


class LoginFailed(BrokerdError):
    """A name, password, key or certificate does not let anybody in."""


class LoginThrottled(BrokerdError):
    """Too many logins failed of late; the message says when the next is looked at."""

    retryable = True


class UnknownAccount(BrokerdError):
    """There is no account of this name."""


class AccountExists(BrokerdError):
    """There is an account of this name already."""


class UnknownKey(BrokerdError):
    """There is no API key with this id."""


class UnknownSchema(BrokerdError):
    """There is no schema, or no version of it, of this name."""


class InvalidSchema(BrokerdError):
    """A definition of a schema is none, or of a type that there is not."""


class IncompatibleSchema(BrokerdError):
    """A new version of a schema does not go together with those that are there."""


class SchemaCheckFailed(BrokerdError):
    """A schema or a message could not be looked at: it takes too much, or a package is missing."""


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
