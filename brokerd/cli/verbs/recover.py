# Tests: tests/archive/test_recover.py
"""``brokerctl archive recover``: set aside commits of other programs (docs/cli.rst).

It reads and writes files, and needs no running broker. A broker finds the version by itself.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from brokerd.archive.storage.access import parse_access, set_umask
from brokerd.archive.storage.address import address
from brokerd.cli import output
from brokerd.cli.options import confirm, some, yes_option
from brokerd.errors import BrokerdError, install_text
from brokerd.server.config import Setting, load


@click.command("recover")
@click.option("--config", "file", type=click.Path(path_type=Path), help="The broker's TOML file.")
@click.option("--archive", help="A directory or s3://BUCKET/NAME: archive.uri.")
@yes_option
@click.pass_context
def recover_command(
    context: click.Context, file: Path | None, archive: str | None, yes: bool
) -> None:
    """Set aside the commits of other programs, so that the archive can be used again."""
    data_dir = Path(os.path.abspath(context.obj["data_dir"]))
    options = [Setting("data_dir", str(data_dir), "--data-dir", True)]
    if archive is not None:
        options.append(Setting("archive.uri", archive, "--archive", True))
    config = load(file, os.environ, options=options).config
    try:
        from brokerd.archive.recover import RecoverJob, run_recover
    except ModuleNotFoundError as missing:
        raise BrokerdError(f"{missing.name} is not installed: {install_text('archive')}") from None
    set_umask(parse_access(config.archive.group, config.archive.mode))
    root = address(config.archive.uri, data_dir)
    found = run_recover(
        RecoverJob(
            data_dir,
            root,
            lambda: time.time_ns() // 1_000_000,
            lambda question: confirm(question, yes),
        )
    )
    lines = [
        f"{one.name}: {some(one.commits, 'commit')} set aside in {one.aside}; the newest version "
        f"is {one.version}"
        for one in found
    ]
    answer = {"archive": str(root), "tables": [one._asdict() for one in found]}
    output.show(context, answer, lines or ["no commit of another program; nothing to do"])
