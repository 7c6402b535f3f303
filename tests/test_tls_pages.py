"""TLS as docs/tls.rst and docs/clients.rst show it: their lines, run as they stand."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 60
PAGE = (ROOT / "docs" / "tls.rst").read_text()
OPENSSL, TWISTD, *AUTHORITY, S_CLIENT = (
    shlex.split(command.replace("\\\n", " "))
    for command in re.findall(r"^    ((?:openssl|twistd)(?:.*\\\n)*.*)$", PAGE, re.MULTILINE)
)
EXAMPLES = [
    dedent(block)
    for block in re.findall(
        r"\.\. code-block:: python\n\n((?:    .*\n|\n)+)", (ROOT / "docs/clients.rst").read_text()
    )
    if "cert.pem" in block
]


MUTUAL = ["--set", "tls.client_ca_file=ca.pem", "--set", "tls.client_auth=optional"]
TWISTD_RUN = "from twisted.scripts.twistd import run; run()"


class Listening(NamedTuple):
    """A broker that was started as the page says, on a free port."""

    directory: Path
    port: str


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    directory = tmp_path_factory.mktemp("tls")
    for openssl in (OPENSSL, *AUTHORITY):
        subprocess.run(openssl, cwd=directory, check=True, capture_output=True, timeout=SECONDS)
    assert (directory / "key.pem").stat().st_mode & 0o77 == 0
    command = [one.replace(":9000:", ":0:") for one in TWISTD[1:]]
    broker = subprocess.Popen(
        [sys.executable, "-c", TWISTD_RUN, *command, "--admin", "none", *MUTUAL],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    listeners = directory / "brokerd-data" / "run" / "listeners.json"
    try:
        until = time.monotonic() + SECONDS
        while not listeners.exists():
            assert broker.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        yield Listening(directory, json.loads(listeners.read_text())["mamamia"].split(":")[1])
    finally:
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(SECONDS) == 0


def run(listening: Listening, example: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", example.replace("9000", listening.port)],
        cwd=listening.directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def test_the_page_has_an_example_for_each_kind_of_client() -> None:
    assert ["ssl_context" in example for example in EXAMPLES] == [True, False]


@pytest.mark.parametrize("example", EXAMPLES, ids=["blocking", "Twisted"])
def test_a_client_speaks_tls_as_the_page_shows(listening: Listening, example: str) -> None:
    done = run(listening, example)
    assert (done.returncode, done.stdout.strip().isdigit()) == (0, True), done.stderr


@pytest.mark.parametrize("example", EXAMPLES, ids=["blocking", "Twisted"])
def test_a_client_goes_by_the_names_in_the_certificate(listening: Listening, example: str) -> None:
    done = run(listening, example.replace("localhost", "elsewhere.example"))
    assert done.returncode != 0
    assert "elsewhere.example" in done.stderr or "VerificationError" in done.stderr


def test_a_client_may_go_by_the_address(listening: Listening) -> None:
    """It stands in the certificate, too."""
    done = run(listening, EXAMPLES[0].replace(', server_hostname="localhost"', ""))
    assert done.returncode == 0, done.stderr


def test_openssl_looks_at_the_broker_and_it_at_the_client(listening: Listening) -> None:
    """With the certificate that the page has an authority sign."""
    command = [one.replace(":9000", f":{listening.port}") for one in S_CLIENT]
    done = subprocess.run(
        [*command, "-verify_return_error"],
        cwd=listening.directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert "Verify return code: 0 (ok)" in done.stdout
    asked = done.stdout.partition("Acceptable client certificate CA names")[2]
    assert re.search("CN ?= ?our clients", asked)
