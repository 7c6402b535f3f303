# Tests: tests/spark/test_sink_options.py
"""Parses and checks the options of the sink, which docs/spark-sink.rst describes. No pyspark.

No option holds a secret, so none can stand in a plan or an error: certificates are paths of files.
An error never quotes the value of an unknown option.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from typing import NamedTuple, NoReturn

from brokerd.archive.storage.address import ObjectAddress, check_uri
from brokerd.client.addresses import parse_address
from brokerd.client.errors import AddressError
from brokerd.errors import ConfigError, escaped
from brokerd.spark.options import BadOption, parse_boolean, parse_size
from brokerd.spark.sink.columns import BadRow, check_topic

NAMES = (
    "server",
    "topic",
    "stagingDirectory",
    "writeId",
    "batchBytes",
    "batchRecords",
    "inFlight",
    "retrySeconds",
    "failOnForgottenProducer",
    "tls",
    "tlsCaFile",
    "tlsCertificateFile",
    "tlsKeyFile",
    "tlsServerName",
)
BATCH_BYTES = 1 << 20
BATCH_BYTES_MAX = 8 << 20
"""A batch must fit a frame of Mamamia (10 MiB) with its keys and lengths."""
BATCH_RECORDS = 10_000
"""The most messages that a batch of Mamamia may have."""
IN_FLIGHT = 8
IN_FLIGHT_MAX = 64
RETRY_SECONDS = 120
STAGING = "brokerd"
"""The staging directory below a checkpoint."""

_CHECKPOINT = "checkpointlocation"
_OF_SPARK = frozenset({_CHECKPOINT, "queryname"})
"""Options that Spark passes to the sink of a stream, in lower case."""
_LOGINS = frozenset({"user", "username", "password", "apikey", "api_key", "key", "token", "login"})
_WRITE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_COUNT = re.compile(r"\d{1,9}", re.ASCII)


class Tls(NamedTuple):
    """The TLS of a connection: paths of PEM files, "" for those that are not given."""

    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    server_name: str = ""

    def context(self) -> ssl.SSLContext:
        """Return the TLS context. Raises `BadOption` for unusable files."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
            if self.certificate_file:
                context.load_cert_chain(
                    self.certificate_file, self.key_file or None, password=_refuse_password
                )
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(filter(None, (self.ca_file, self.certificate_file, self.key_file)))
            raise BadOption(
                f"TLS cannot use {files}: {error.strerror or error}; they must be PEM files that "
                "the user of Spark may read on this machine"
            ) from error
        return context


class SinkOptions(NamedTuple):
    """The options of a write. It is pickled."""

    server: str
    topic: str | None
    staging: str | None
    """The address of the staging directory; None: send without staging."""
    write_id: str | None
    batch_bytes: int
    batch_records: int
    in_flight: int
    """The number of batches that may be on their way to the broker."""
    retry_seconds: int
    fail_on_forgotten: bool
    tls: Tls | None


def batch_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse and check the options of ``df.write``.

    :param given: option names in any case.
    :raises BadOption: the text names the option and the allowed values.
    """
    values = _known(given)
    options = _parse(values, _staging(values))
    if (options.staging is None) != (options.write_id is None):
        raise BadOption(
            "stagingDirectory and writeId go together: with both, the rows of a write are stored "
            "once however often it is repeated; without both, they are sent as they come"
        )
    return options


def stream_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse and check the options of ``df.writeStream``. Raises `BadOption` as `batch_options`."""
    values = _known(given)
    if "writeId" in values:
        raise BadOption("writeId is for df.write: a stream has its checkpoint instead")
    staging = _staging(values) or _staging_of_checkpoint(given)
    return _parse(values, staging)


def _known(given: Mapping[str, str]) -> dict[str, str]:
    """Return the sink's options by their names."""
    known = {name.lower(): name for name in NAMES}
    values: dict[str, str] = {}
    for written, value in given.items():
        name = written.lower()
        if name in known:
            values[known[name]] = value
        elif name in ("path", "paths"):
            raise BadOption("the sink has no path: give the address of the broker as server")
        elif name in _LOGINS:
            raise BadOption(
                f"unknown option {escaped(written)!r}: the sink logs in by a certificate "
                "(tlsCertificateFile), or as the account of the broker's listener "
                "(mamamia.principal)"
            )
        elif name == "kafka.bootstrap.servers":
            raise BadOption(
                f"unknown option {escaped(written)!r}: give the address of the broker's Mamamia "
                "listener as server"
            )
        elif name not in _OF_SPARK:
            raise BadOption(
                f"unknown option {escaped(written)[:60]!r}; the options of a write are "
                f"{', '.join(NAMES)}"
            )
    return values


def _parse(values: Mapping[str, str], staging: str | None) -> SinkOptions:
    topic = values.get("topic")
    if topic is not None:
        try:
            check_topic(topic)
        except BadRow as error:
            raise BadOption(f"topic: {error}") from None
    batch_bytes = parse_size(values, "batchBytes") or BATCH_BYTES
    if batch_bytes > BATCH_BYTES_MAX:
        raise BadOption(f"batchBytes={batch_bytes} is too large: give {BATCH_BYTES_MAX} or less")
    return SinkOptions(
        server=_server(values),
        topic=topic,
        staging=staging,
        write_id=_write_id(values),
        batch_bytes=batch_bytes,
        batch_records=_count(values, "batchRecords", BATCH_RECORDS, BATCH_RECORDS),
        in_flight=_count(values, "inFlight", IN_FLIGHT, IN_FLIGHT_MAX),
        retry_seconds=_count(values, "retrySeconds", RETRY_SECONDS, 86_400),
        fail_on_forgotten=parse_boolean(values, "failOnForgottenProducer", True),
        tls=parse_tls(values),
    )


def _server(values: Mapping[str, str]) -> str:
    server = values.get("server", "").strip()
    if not server:
        raise BadOption(
            "server is missing: give the address of the broker's Mamamia listener, such as "
            "127.0.0.1:9000"
        )
    if "@" in server:
        raise BadOption("server must be host:port alone, without a name or password before it")
    try:
        parse_address(server)
    except AddressError as error:
        raise BadOption(f"server: {error}") from None
    return server


def _write_id(values: Mapping[str, str]) -> str | None:
    write_id = values.get("writeId")
    if write_id is not None and not _WRITE_ID.fullmatch(write_id):
        raise BadOption(
            "writeId must have 1 to 100 letters, digits, '.', '_' or '-', and begin with a letter "
            "or digit"
        )
    return write_id


def _count(values: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = values.get(name)
    if text is None:
        return default
    if not _COUNT.fullmatch(text.strip()) or not 1 <= int(text) <= most:
        raise BadOption(f"{name}={text[:60]!r} must be a whole number from 1 to {most}")
    return int(text)


def parse_tls(values: Mapping[str, str]) -> Tls | None:
    """Return the TLS of a connection, or None. Raises `BadOption`."""
    fields = [values.get(name, "") for name in NAMES[NAMES.index("tlsCaFile") :]]
    tls = Tls(*fields)
    if not parse_boolean(values, "tls", any(fields)):
        if any(fields):
            raise BadOption("tls is false, so the other options of TLS have no effect: remove them")
        return None
    if tls.key_file and not tls.certificate_file:
        raise BadOption("tlsKeyFile needs tlsCertificateFile, the certificate of the key")
    return tls


def _staging(values: Mapping[str, str]) -> str | None:
    given = values.get("stagingDirectory")
    return None if given is None else _place("stagingDirectory", given)


def _staging_of_checkpoint(given: Mapping[str, str]) -> str:
    """Return the default staging directory of a stream."""
    checkpoint = next((value for name, value in given.items() if name.lower() == _CHECKPOINT), "")
    if not checkpoint:
        raise BadOption(
            "the sink needs the option checkpointLocation, or stagingDirectory: a directory for "
            "the rows of a micro-batch, which the driver and all executors can read and write"
        )
    place = _place("checkpointLocation", checkpoint)
    return f"{place.rstrip('/')}/{STAGING}"


def _place(name: str, text: str) -> str:
    """Return the address of a directory, absolute if it is on a disk."""
    try:
        place = check_uri(text.strip())
    except ConfigError:
        raise BadOption(
            f"{name}={text[:200]!r} is neither a directory nor s3://BUCKET/NAME, so the sink "
            "cannot keep rows there: give another stagingDirectory"
        ) from None
    if isinstance(place, ObjectAddress):
        return str(place)
    if not place:
        raise BadOption(f"{name} is empty: give a directory")
    return os.path.abspath(place)


def _refuse_password() -> NoReturn:
    raise BadOption("the key of the certificate (tlsKeyFile) must not be encrypted")
