"""Importing ``brokerd.spark``: before a session is made, after it, and without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(script: str) -> str:
    """What a script prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_pyspark_planning_works_and_registering_says_what_to_install() -> None:
    said = run(
        "import sys; sys.modules['pyspark'] = None\n"
        "import brokerd.spark, brokerd.spark.plan.query_plan, brokerd.spark.options\n"
        "try: brokerd.spark.register(None)\n"
        "except brokerd.spark.NoPyspark as error: print(error)\n"
    )
    assert said == (
        "pyspark is not installed: pip install 'brokerd[spark]' "
        "(in a working copy: make spark; Debian: apt install brokerd-archive)\n"
    )


def test_the_import_takes_no_library_but_pyspark() -> None:
    """So that a program that never reads a log loses little by it."""
    said = run(
        "import sys, pyspark.sql; before = set(sys.modules); import brokerd.spark\n"
        "print(*(sorted(name for name in set(sys.modules) - before)))\n"
    )
    assert set(said.split()) <= {"brokerd", "brokerd.errors", "brokerd.spark"}


@pytest.mark.slow
def test_a_session_that_is_made_after_the_import_knows_the_format() -> None:
    """Its sisters work, though Spark keeps the format from them."""
    said = run(
        "import brokerd.spark\n"
        "from pyspark.sql import SparkSession\n"
        "builder = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')\n"
        "spark = builder.config('spark.driver.bindAddress', '127.0.0.1').getOrCreate()\n"
        "assert SparkSession.builder.getOrCreate() is spark\n"
        "print(spark.newSession().range(1).count())\n"
        "try: spark.read.format('brokerd').load('/nowhere')\n"
        "except Exception as error: print(error)\n"
    )
    assert said.startswith("1\n")
    assert (
        "BadLocation: /nowhere does not exist: load a broker's data directory, or an archive"
        in said
    )


@pytest.mark.slow
def test_a_session_that_imports_nothing_knows_the_format() -> None:
    """Spark finds the module ``pyspark_brokerd`` itself; an import later changes nothing."""
    said = run(
        "from pyspark.sql import SparkSession\n"
        "builder = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')\n"
        "spark = builder.config('spark.driver.bindAddress', '127.0.0.1').getOrCreate()\n"
        "def load():\n"
        "    try: spark.read.format('brokerd').load('/nowhere')\n"
        "    except Exception as error: print('/nowhere does not exist' in str(error))\n"
        "load()\n"
        "import brokerd.spark\n"
        "load()\n"
    )
    assert said == "True\nTrue\n"


def test_a_worker_without_the_packages_of_the_source_finds_no_source() -> None:
    """A module that cannot be imported would take all Python data sources from the session."""
    said = run(
        "import sys; sys.modules['msgpack'] = None\n"
        "import pyspark_brokerd\n"
        "print(hasattr(pyspark_brokerd, 'DefaultSource'))\n"
    )
    assert said == "False\n"
