"""The configuration as an operator meets it: layers, refusals, and the annotated example file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from twisted.internet import reactor

from brokerd.broker import BrokerSettings
from brokerd.errors import ConfigError
from brokerd.protocols.base.connection import Limits
from brokerd.server.assembly import broker_settings, connection_limits, make_core
from brokerd.server.config import (
    SECTIONS,
    Config,
    Setting,
    load,
    parse_durability,
    parse_size,
    secret_warnings,
    with_secrets,
)
from brokerd.wal import WalOptions

EXAMPLE = Path(__file__).resolve().parent.parent / "etc" / "brokerd.toml"


def numbers() -> Iterator[tuple[str, Any]]:
    """(dotted name, its bounds) of every option that is a number."""
    for section, struct in SECTIONS.items():
        for key, kind in get_type_hints(struct, include_extras=True).items():
            if kind is int or get_origin(kind) is Annotated:
                yield f"{section}.{key}", next(iter(get_args(kind)[1:]), None)


NUMBERS = dict(numbers())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "brokerd.toml"


def test_example_file_states_exactly_the_defaults() -> None:
    """etc/brokerd.toml may be copied as it is: it changes nothing."""
    assert load(EXAMPLE).config == Config()


def test_example_file_names_every_option() -> None:
    """No option is missing from etc/brokerd.toml, and none there is unknown to the code."""
    document = tomllib.loads(EXAMPLE.read_text())
    for section, struct in SECTIONS.items():
        assert set(document.pop(section)) == set(struct.__struct_fields__), section
    assert set(document) == {"data_dir", "listen"}


def test_example_file_gives_a_reason_for_every_option() -> None:
    """Each option, or the run of options it stands in, follows a comment; so does ``[listen]``."""
    lines = EXAMPLE.read_text().splitlines()
    section = ""
    for above, line in pairwise(lines):
        if line.startswith("["):
            section = line
            assert section != "[listen]" or above.startswith("#")
        elif re.match(r"\w+ =", line) and section != "[listen]":
            assert above.startswith(("#", "backoff", "requests_per", "cluster_id")), line


def test_later_layers_win(file: Path) -> None:
    """Defaults, then the file, then the environment, then --set."""
    file.write_text("[groups]\nmax_attempts = 4\nbackoff_base_ms = 4\nbackoff_max_ms = 4\n")
    loaded = load(
        file,
        {"BROKERD_GROUPS_BACKOFF_BASE_MS": "5", "BROKERD_GROUPS_BACKOFF_MAX_MS": "5"},
        ["groups.backoff_max_ms=6"],
    )
    groups = loaded.config.groups
    assert (groups.max_attempts, groups.backoff_base_ms, groups.backoff_max_ms) == (4, 5, 6)
    assert groups.attempts == Config().groups.attempts
    assert loaded.sources == {
        "groups.max_attempts": f"{file}: [groups] max_attempts",
        "groups.backoff_base_ms": "environment variable BROKERD_GROUPS_BACKOFF_BASE_MS",
        "groups.backoff_max_ms": "--set groups.backoff_max_ms",
    }


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[wall]\nx=1", "unknown section or key 'wall', did you mean 'wal'?"),
        ("[wal]\ndurabilty='os'", "unknown key 'wal.durabilty', did you mean 'wal.durability'?"),
        ("[wal]\nsegment_bytes='lots'", 'wal.segment_bytes: expected a size such as 1048576 or "1'),
        ("[wal]\nsegment_bytes=1", "from 1048576 to 1073741824, got 1"),
        ("[wal]\nsegment_bytes=true", "got True"),
        ("[wal]\nallow_network_fs='true'", "wal.allow_network_fs: expected true or false"),
        ("[groups]\nmax_attempts=0", "groups.max_attempts: expected a whole number, from 1 to 1"),
        ("[groups]\nmax_attempts='3'", "got '3'"),
        ("[groups]\nattempts='both'", 'expected one of "failures", "grants", got \'both\''),
        ("[security]\nauth='maybe'", 'expected one of "off", "on"'),
        ("[listen]\nmamamia=9000", "listen.mamamia: expected text, got 9000"),
        ("[listen]\n'mega+flymq'='tcp:1'", "first byte does not tell them apart"),
        ("[listen]\nmamamai='tcp:1'", "unknown wire format 'mamamai', did you mean 'mamamia'?"),
        ("data_dir=1", "data_dir: expected text, got 1"),
        ("data_dir=''", "data_dir: expected the path of a directory"),
        ("wal=1", "wal is a section: write [wal]"),
        ("wal", "is not TOML: Expected '='"),
    ],
)
def test_file_mistakes_are_named_with_their_place(file: Path, line: str, said: str) -> None:
    """A mistake in the file is answered by key, wish, value and file."""
    file.write_text(line)
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert said in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_back_off_above_its_maximum_is_refused_with_both_places(file: Path) -> None:
    file.write_text("[groups]\nbackoff_base_ms = 5000\n")
    with pytest.raises(ConfigError) as caught:
        load(file, {"BROKERD_GROUPS_BACKOFF_MAX_MS": "4999"})
    assert str(caught.value) == (
        "groups.backoff_base_ms: expected at most groups.backoff_max_ms, which is 4999, got 5000 "
        f"({file}: [groups] backoff_base_ms, environment variable BROKERD_GROUPS_BACKOFF_MAX_MS)"
    )
    load(file, {"BROKERD_GROUPS_BACKOFF_MAX_MS": "5000"})


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A missing file, a directory and a file that is not text get one line each."""
    (tmp_path / "latin").write_bytes(b"# \xe9\n")
    for name, said in [("gone", "No such file"), ("", "Is a directory"), ("latin", "not UTF-8")]:
        with pytest.raises(ConfigError, match=said):
            load(tmp_path / name)


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("BROKERD_WLA_DURABILITY", "did you mean 'BROKERD_WAL_DURABILITY'?"),
        ("BROKERD_ZZZZ", "unknown environment variable BROKERD_ZZZZ"),
        ("BROKERD_WAL_ALLOW_NETWORK_FS", "(environment variable BROKERD_WAL_ALLOW_NETWORK_FS)"),
        ("BROKERD_LISTEN_MEGA_RUSTLOG", "(environment variable BROKERD_LISTEN_MEGA_RUSTLOG)"),
    ],
)
def test_environment_mistakes_name_the_variable(variable: str, said: str) -> None:
    """An unknown variable or a wrong value is refused by the variable's name."""
    with pytest.raises(ConfigError) as caught:
        load(environment={variable: "sometimes"})
    assert said in str(caught.value)


def test_variables_of_orchestrators_are_ignored() -> None:
    """Kubernetes announces a service called brokerd by variables that are not ours.

    ``BROKERD_COMPILE`` is for the build.
    """
    environment = {"BROKERD_SERVICE_HOST": "10.0.0.1", "BROKERD_PORT_9000_TCP": "tcp://x"}
    environment["BROKERD_COMPILE"] = "1"
    assert load(environment={**environment, "HOME": "/"}).config == Config()


def test_environment_text_becomes_numbers_and_truth() -> None:
    """Text is read as the option's own type where only text can be given."""
    config = load(
        environment={
            "BROKERD_DATA_DIR": "/data",
            "BROKERD_WAL_ALLOW_NETWORK_FS": "true",
            "BROKERD_WAL_SEGMENT_BYTES": "1MiB",
            "BROKERD_LISTEN_MAMAMIA": "tcp:1",
        }
    ).config
    assert config.data_dir == "/data"
    assert config.wal.allow_network_fs is True
    assert config.wal.segment_bytes == 1024 * 1024
    assert config.listen["mamamia"] == "tcp:1"


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("wal.durability", "expected section.key=value"),
        ("wal=os", "unknown key 'wal'"),
        ("durability=os", "unknown key 'durability'"),
        ("wal.durability=sometimes", 'wal.durability: expected "fsync", "os" or "interval:<ms>"'),
        ("archive.uri=ftp://host/a", "archive.uri: 'ftp://host/a' is neither a local directory"),
        ("admin.hosts=https://box", "admin.hosts: expected names of hosts, without scheme, port"),
        ("admin.hosts=box,box:80", "got 'box:80'"),
        ("groups.max_attempts=three", "groups.max_attempts: expected a whole number"),
    ],
)
def test_set_mistakes_name_the_option(assignment: str, said: str) -> None:
    """A wrong --set says which one it was."""
    with pytest.raises(ConfigError) as caught:
        load(assignments=[assignment])
    assert said in str(caught.value)
    assert "--set" in str(caught.value)


def test_the_archive_is_not_put_among_the_broker_s_own_files(tmp_path: Path) -> None:
    """The broker would take it for something of the journal's."""
    load(assignments=[f"data_dir={tmp_path}", f"archive.uri={tmp_path}/elsewhere"])
    with pytest.raises(ConfigError, match="belongs to the broker"):
        load(assignments=[f"data_dir={tmp_path}", f"archive.uri={tmp_path}/wal"])


def test_listen_options_replace_every_other_listener(file: Path) -> None:
    """With any --listen, only those listen."""
    file.write_text("[listen]\nmamamia = 'tcp:1'\n")
    config = load(file, {}, ["listen.mamamia=tcp:2"], ["mamamia=tcp:0:interface=127.0.0.1"]).config
    assert config.listen == {"mamamia": "tcp:0:interface=127.0.0.1"}


def test_listeners_of_other_formats_stay_only_where_they_are_named(file: Path) -> None:
    """A [listen] table replaces the defaults, --listen the table; --set changes one alone."""
    file.write_text("[listen]\nblipmq = 'tcp:5'\n")
    assert load(file).config.listen == {"blipmq": "tcp:5"}
    assert load(file, listeners=["mamamia=tcp:0"]).config.listen == {"mamamia": "tcp:0"}
    assert load(listeners=["blipmq=tcp:7"]).config.listen == {"blipmq": "tcp:7"}
    changed = load(assignments=["listen.blipmq=tcp:6"]).config.listen
    assert changed == {**Config().listen, "blipmq": "tcp:6"}


def test_listener_can_be_removed() -> None:
    """The endpoint none takes a listener away."""
    others = {form: endpoint for form, endpoint in Config().listen.items() if form != "mamamia"}
    assert load(assignments=["listen.mamamia=none"]).config.listen == others


@pytest.mark.parametrize(
    ("listener", "said"),
    [
        ("mamamia", "expected FORMAT=ENDPOINT"),
        ("mamamia=", "expected FORMAT=ENDPOINT"),
        ("admin=tcp:0", "use --admin tcp:0"),
        ("mamama=tcp:0", "unknown wire format 'mamama', did you mean 'mamamia'?"),
        ("mamamia+mamamia=tcp:0", "names a format twice"),
    ],
)
def test_listen_mistakes_are_refused(listener: str, said: str) -> None:
    """A wrong --listen is answered with what was expected."""
    with pytest.raises(ConfigError) as caught:
        load(listeners=[listener])
    assert said in str(caught.value)


def test_one_format_has_one_endpoint() -> None:
    """listeners.json has one address for each format, so a second --listen for it is refused."""
    with pytest.raises(ConfigError, match="mamamia has an endpoint already"):
        load(listeners=["mamamia=tcp:0", "mamamia=tcp:1"])


@pytest.mark.parametrize(
    ("assignments", "listen"),
    [
        (["listen.flymq+rustlog=tcp:1"], {"flymq+rustlog": "tcp:1"}),
        (
            ["listen.flymq+rustlog=tcp:1", "listen.flymq=tcp:2"],
            {"rustlog": "tcp:1", "flymq": "tcp:2"},
        ),
        (["listen.flymq+rustlog=tcp:1", "listen.flymq=none"], {"rustlog": "tcp:1"}),
        (["listen.flymq=tcp:1", "listen.flymq+blipmq=tcp:2"], {"flymq+blipmq": "tcp:2"}),
        (["listen.flymq+rustlog=tcp:1", "listen.flymq+rustlog=none"], {}),
    ],
)
def test_a_format_listens_where_it_was_last_said(
    file: Path, assignments: list[str], listen: dict[str, str]
) -> None:
    """Whether alone or with another on one endpoint; the other stays where it was."""
    file.write_text("[listen]\nmamamia = 'none'\n")
    name, _, endpoint = assignments[0].partition("=")
    variable = "BROKERD_" + name.replace(".", "_").replace("+", "_").upper()
    assert load(file, {variable: endpoint}, assignments[1:]).config.listen == listen


@pytest.mark.parametrize("pair", ["mamamia+rustlog", "blipmq+rustlog", "mega+flymq", "flymq+mega"])
def test_formats_that_begin_alike_cannot_share_an_endpoint(pair: str) -> None:
    with pytest.raises(ConfigError, match="first byte does not tell them apart"):
        load(listeners=[f"{pair}=tcp:0"])


def test_one_place_names_one_endpoint_of_a_format(file: Path) -> None:
    file.write_text("[listen]\nflymq = 'tcp:1'\n'flymq+rustlog' = 'tcp:2'\n")
    with pytest.raises(ConfigError, match=r"flymq has an endpoint already: .*\[listen\] flymq"):
        load(file)
    with pytest.raises(ConfigError, match="rustlog has an endpoint already"):
        load(listeners=["flymq+rustlog=tcp:1", "rustlog=tcp:2"])


def test_keys_come_as_a_list_or_with_commas_and_from_a_file(file: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# billing team\nthree\n\n four \t\n  # five\nsix # 7\n")
    file.write_text(f"[blipmq]\napi_keys = ['one', 'two']\napi_keys_file = '{keys}'\n")
    loaded = load(file)
    assert loaded.warnings == ()
    assert loaded.config.blipmq.api_keys == ("one", "two")
    assert with_secrets(loaded.config).blipmq.api_keys == (
        *("one", "two", "three", "four"),
        "six # 7",
    )
    given = load(environment={"BROKERD_BLIPMQ_API_KEYS": "five, six"}).config
    assert with_secrets(given).blipmq.api_keys == ("five", "six")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("CN=a,O=Acme => x", ("CN=a,O=Acme => x",)),
        ("CN=a,O=Acme => x, CN=b=>y ,", ("CN=a,O=Acme => x", "CN=b=>y")),
        (",,CN=a, O=Acme", ("CN=a, O=Acme",)),
        ("", ()),
    ],
)
def test_principals_with_commas_in_them_may_be_set(given: str, meant: tuple[str, ...]) -> None:
    """A subject has commas, and each part ends with its account."""
    assert load(assignments=[f"tls.principals={given}"]).config.tls.principals == meant


def test_a_secret_on_the_command_line_is_warned_of_and_never_repeated() -> None:
    loaded = load(assignments=["blipmq.api_keys=hunter2"])
    assert "blipmq.api_keys_file=PATH" in loaded.warnings[0]
    with pytest.raises(ConfigError, match="expected a list of texts, got something else"):
        load(environment={}, options=[Setting("blipmq.api_keys", 5, "here", False)])


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o604])
def test_a_file_of_keys_that_others_may_read_is_warned_of(tmp_path: Path, mode: int) -> None:
    keys = tmp_path / "keys"
    config = load(assignments=[f"blipmq.api_keys_file={keys}"]).config
    with pytest.raises(ConfigError, match=r"blipmq.api_keys_file: cannot read .*: No such file"):
        secret_warnings(config)
    keys.write_text("hunter2\n")
    keys.chmod(mode)
    said = f"{keys} has the mode {mode:o}, so that others may read its secrets; chmod 600 it"
    assert secret_warnings(config) == ((f"blipmq.api_keys_file: {said}",) if mode & 0o44 else ())
    assert secret_warnings(load().config) == ()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read .*keys: No such file"),
        (b"\n\n", "has no secret"),
        (b"# one\n", "has no secret"),
        (b"\xff", "is not UTF-8"),
    ],
)
def test_a_file_of_keys_that_gives_none_is_refused(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    keys = tmp_path / "keys"
    if content is not None:
        keys.write_bytes(content)
    config = load(assignments=[f"blipmq.api_keys_file={keys}"]).config
    with pytest.raises(ConfigError, match=said):
        with_secrets(config)


@pytest.mark.parametrize(
    ("content", "password"),
    [
        ("sesame", "sesame"),
        ("sesame\n", "sesame"),
        ("sesame\r\n", "sesame"),
        ("#S3cret!\nmore\n", "#S3cret!"),
        (" \tboth ends \u2028\x85 \nmore", " \tboth ends \u2028\x85 "),
    ],
)
def test_the_administrators_password_is_the_first_line_of_its_file_as_it_is(
    tmp_path: Path, content: str, password: str
) -> None:
    """No comments, no white space that goes: what looks like these may be of a password."""
    file = tmp_path / "password"
    file.write_bytes(content.encode())
    config = load(assignments=[f"security.admin_password_file={file}"]).config
    assert with_secrets(config).security.admin_password == (password,)


@pytest.mark.parametrize("content", ["", "\nsesame\n"])
def test_a_file_without_a_first_line_gives_no_password(tmp_path: Path, content: str) -> None:
    file = tmp_path / "password"
    file.write_text(content)
    config = load(assignments=[f"security.admin_password_file={file}"]).config
    with pytest.raises(ConfigError, match=r"admin_password_file: the first line of .* is empty"):
        with_secrets(config)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [("fsync", ("fsync", 0)), ("os", ("os", 0)), ("interval:50", ("interval", 50))],
)
def test_durability_modes(text: str, meaning: tuple[str, int]) -> None:
    """The three modes are read as mode and milliseconds."""
    assert parse_durability(text) == meaning


@pytest.mark.parametrize(
    "text", ["", "FSYNC", "fsync:1", "interval", "interval:0", "interval:60001", "interval:-1"]
)
def test_other_durability_modes_are_refused(text: str) -> None:
    """Anything else is refused, because a guess here loses data."""
    with pytest.raises(ConfigError):
        parse_durability(text)


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("10", 10), ("1KiB", 1024), ("2 MiB", 2 << 20), ("1GiB", 1 << 30)]
)
def test_sizes(text: str, size: int) -> None:
    """Sizes are bytes or carry a binary unit."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1MB", "1.5MiB", "MiB", "²"])
def test_other_sizes_are_refused(text: str) -> None:
    """Units that could mean two things, fractions and signs are refused."""
    with pytest.raises(ValueError):
        parse_size(text)


def test_configuration_cannot_be_changed() -> None:
    """Options are values: nothing changes them while the broker runs."""
    with pytest.raises(AttributeError):
        Config().wal.segment_bytes = 1  # type: ignore[misc]
    assert msgspec.structs.replace(Config().wal, segment_bytes=2).segment_bytes == 2


LONGEST_BACKOFF = (f"groups.backoff_max_ms={NUMBERS['groups.backoff_max_ms'].le}",)
"""So that the largest base is not above the maximum."""


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_has_bounds_and_the_broker_takes_both(name: str, tmp_path: Path) -> None:
    """What ``config check`` lets through never keeps a broker from starting."""
    for bound in (NUMBERS[name].ge, NUMBERS[name].le):
        rest = LONGEST_BACKOFF if name == "groups.backoff_base_ms" else ()
        config = load(assignments=[f"{name}={bound}", *rest]).config
        make_core(config, tmp_path / "data", reactor)  # opens nothing
    for beyond in (NUMBERS[name].ge - 1, NUMBERS[name].le + 1, 10**400):
        with pytest.raises(ConfigError, match=rf"{name}: expected .*, from \d+ to \d+"):
            load(assignments=[f"{name}={beyond}"])


def test_the_memory_budget_has_a_least_size() -> None:
    """Below it, the largest frames and answers of some formats would never find room."""
    assert load(assignments=["limits.memory=0"]).config.limits.memory == 0
    assert load(assignments=["limits.memory=64MiB"]).config.limits.memory == 64 << 20
    with pytest.raises(ConfigError, match=r"limits.memory: expected 0 or 67108864 bytes and more"):
        load(assignments=["limits.memory=63MiB"])


def test_the_defaults_are_those_of_the_parts() -> None:
    """A part used alone, in a test or a program, behaves like a broker out of the box."""
    assert broker_settings(Config()) == BrokerSettings()
    assert connection_limits(Config()) == Limits()
    wal, options = Config().wal, WalOptions()
    mode, _ = parse_durability(wal.durability)
    assert options == replace(
        options,
        segment_bytes=wal.segment_bytes,
        durability=mode,
        seal_age_us=wal.segment_age_seconds * 1_000_000,
    )
