"""The options of the sink: an error names a wrong one before the first write."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.spark.options import BadOption
from brokerd.spark.sink.options import Tls, batch_options, stream_options
from tests.certificates import Authority

SERVER = {"server": "127.0.0.1:9000"}


def test_a_write_needs_a_server_and_nothing_else() -> None:
    options = batch_options(SERVER)
    assert options.server == "127.0.0.1:9000"
    assert (options.topic, options.staging, options.write_id, options.tls) == (None,) * 4
    assert (options.batch_bytes, options.batch_records, options.in_flight) == (1 << 20, 10_000, 8)
    assert options.fail_on_forgotten


def test_names_have_any_case_and_values_their_units() -> None:
    given = {"SERVER": "[::1]:9000", "batchbytes": "64KiB", "InFlight": "3", "batchRecords": "7"}
    options = batch_options(given)
    assert (options.server, options.batch_bytes, options.in_flight) == ("[::1]:9000", 65_536, 3)
    assert options.batch_records == 7


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "server is missing"),
        ({"server": "broker"}, "host:port"),
        ({"server": "ann:hush@broker:9000"}, "without a name or password"),
        ({**SERVER, "topic": ""}, "topic: a topic has 1 to 255 bytes"),
        ({**SERVER, "topic": "a\nb"}, "control characters"),
        ({**SERVER, "topic": "__brokerd.7"}, "the broker's own"),
        ({**SERVER, "topics": "a"}, "unknown option 'topics'; the options of a write are server"),
        ({"kafka.bootstrap.servers": "a:1", "topic": "a"}, "listener as server"),
        ({**SERVER, "path": "/data"}, "the sink has no path"),
        ({**SERVER, "password": "hush"}, "logs in by a certificate"),
        ({**SERVER, "batchBytes": "9MiB"}, "too large: give 8388608 or less"),
        ({**SERVER, "batchRecords": "0"}, "a whole number from 1 to 10000"),
        ({**SERVER, "inFlight": "many"}, "a whole number from 1 to 64"),
        ({**SERVER, "retrySeconds": "-1"}, "a whole number from 1 to 86400"),
        ({**SERVER, "writeId": "one"}, "stagingDirectory and writeId go together"),
        ({**SERVER, "stagingDirectory": "/data"}, "stagingDirectory and writeId go together"),
        ({**SERVER, "stagingDirectory": "/data", "writeId": "../up"}, "writeId must have 1 to 100"),
        ({**SERVER, "stagingDirectory": "hdfs://a/b", "writeId": "1"}, "s3://BUCKET/NAME"),
        ({**SERVER, "tls": "maybe"}, "neither true nor false"),
        ({**SERVER, "tls": "false", "tlsCaFile": "/ca.pem"}, "have no effect"),
        ({**SERVER, "tlsKeyFile": "/key.pem"}, "tlsKeyFile needs tlsCertificateFile"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], said: str) -> None:
    """And no error repeats what may be a secret."""
    with pytest.raises(BadOption) as refused:
        batch_options(given)
    assert said in str(refused.value)
    assert "hush" not in str(refused.value)


def test_a_stream_stages_in_its_checkpoint_or_where_it_is_told() -> None:
    of_spark = {"checkpointLocation": "file:///srv/checkpoint", "queryName": "q"}
    assert stream_options({**SERVER, **of_spark}).staging == "/srv/checkpoint/brokerd"
    in_bucket = {"checkpointlocation": "s3://bucket/checkpoint"}
    assert stream_options({**SERVER, **in_bucket}).staging == "s3://bucket/checkpoint/brokerd"
    told = {**SERVER, "checkpointLocation": "hdfs://a/b", "stagingDirectory": "/srv/staging"}
    assert stream_options(told).staging == "/srv/staging"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (SERVER, "needs the option checkpointLocation, or stagingDirectory"),
        ({**SERVER, "checkpointLocation": "hdfs://a/b"}, "give another stagingDirectory"),
        ({**SERVER, "checkpointLocation": "/c", "writeId": "1"}, "writeId is for df.write"),
    ],
)
def test_a_stream_without_a_place_for_its_rows_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(BadOption, match=said):
        stream_options(given)


def test_files_of_tls_are_read_before_the_job(tmp_path: Path) -> None:
    """Options of TLS switch it on. A file that is not usable is named."""
    authority = Authority(tmp_path)
    issued = authority.issue("sink")
    options = {
        "tlsCaFile": str(authority.certificate),
        "tlsCertificateFile": str(issued.certificate),
    }
    tls = batch_options({**SERVER, **options, "tlsKeyFile": str(issued.key)}).tls
    assert tls is not None
    assert tls.context().check_hostname
    assert batch_options({**SERVER, "tls": "true"}).tls == Tls()
    with pytest.raises(BadOption, match=r"TLS cannot use /nowhere/ca.pem: No such file"):
        Tls(ca_file="/nowhere/ca.pem").context()
