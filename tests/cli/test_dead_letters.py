"""``brokerctl dlq``."""

from __future__ import annotations

import pytest

from tests.cli.shell import Shell

ON = ("orders", "billing")


@pytest.fixture
def bad(shell: Shell) -> Shell:
    """Two partitions of four records, all dead: `odd` first, and a minute later `worse`."""
    shell.run("topic", "create", "orders", "--partitions", "2")
    for partition in ("0", "1"):
        records = "a\nb\nc\nd\n"
        shell.run("produce", "orders", "--lines", "--partition", partition, input=records)
    broker, house = shell.caller.house.broker, shell.caller.house
    for reason, offsets in (("odd", (0, 1)), ("worse", (2, 3))):
        for partition_index in range(2):
            for offset in offsets:
                group_partition = broker.leases.group_partition(*ON, partition_index, offset)
                broker.leases.dead_letter(group_partition, offset, reason)
        house.run()
        house.pass_time(60, 1)
    return shell


def left(shell: Shell, *options: str) -> list[tuple[int, int]]:
    letters = shell.json("dlq", "list", *ON, *options)["dead_letters"]
    return [(letter["partition"], letter["offset"]) for letter in letters]


EVERY = [(partition, offset) for partition in range(2) for offset in range(4)]


def test_dead_letters_are_listed(bad: Shell) -> None:
    lines = bad.lines("dlq", "list", *ON, "--partition", "1", "--reason", "odd")
    assert lines[0].split() == [
        "PARTITION",
        "OFFSET",
        "REASON",
        "GRANTS",
        "FAILURES",
        "FIRST",
        "LAST",
    ]
    assert [line.split()[:5] for line in lines[1:]] == [
        ["1", "0", "odd", "0", "0"],
        ["1", "1", "odd", "0", "0"],
    ]
    assert lines[1].endswith("Z")
    assert bad.lines("dlq", "list", *ON, "--reason", "none") == ["no dead letters"]
    assert left(bad) == EVERY
    assert left(bad, "--before", "2023-11-14T22:14:00") == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_dead_letters_are_shown_with_their_records(bad: Shell) -> None:
    lines = bad.lines("dlq", "peek", *ON, "--offset", "2", "--partition", "1")
    assert lines[0].startswith("worse, 0 grants, 0 failures, last attempt 2023-11-14 22:14:20")
    assert lines[1].startswith("  1:2  2023-11-14 ")
    assert lines[1].endswith("  c")
    shown = bad.json("dlq", "peek", *ON, "--max", "3", "--reason", "worse")["dead_letters"]
    assert [letter["record"]["value"] for letter in shown] == ["c", "d", "c"]
    assert "no dead letter at offset 9" in bad.refused("dlq", "peek", *ON, "--offset", "9")


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        (["--all"], EVERY),
        (["--offset", "3"], [(0, 3)]),
        (["--offset", "3", "--partition", "1"], [(1, 3)]),
        (["--all", "--partition", "1"], [place for place in EVERY if place[0] == 1]),
        (["--all", "--reason", "odd"], [place for place in EVERY if place[1] < 2]),
        (["--all", "--before", "2023-11-14T22:14:00Z"], [place for place in EVERY if place[1] < 2]),
    ],
)
@pytest.mark.parametrize("verb", ["replay", "purge"])
def test_those_that_fit_are_changed(
    bad: Shell, verb: str, options: list[str], gone: list[tuple[int, int]]
) -> None:
    """A dry run counts the same and changes nothing."""
    count = len(gone)
    dry = bad.json("dlq", verb, *ON, *options, "--dry-run")
    assert dry == {"count": count, "dry_run": True}
    assert left(bad) == EVERY
    yes = ["--yes"] if verb == "purge" else []
    done = {"replay": "replayed", "purge": "purged"}[verb]
    assert bad.lines("dlq", verb, *ON, *options, *yes) == [f"{count} {done}"]
    assert left(bad) == [place for place in EVERY if place not in gone]


@pytest.mark.parametrize("verb", ["replay", "purge"])
@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_one_that_is_not_there_is_refused(bad: Shell, verb: str, dry: list[str]) -> None:
    """A script must not believe that it mended something."""
    text = bad.refused("dlq", verb, *ON, "--offset", "9", "--yes", *dry)
    assert "no dead letter at offset 9 of partition 0 of group 'billing'" in text
    text = bad.refused("dlq", verb, *ON, "--offset", "3", "--reason", "odd", "--yes", *dry)
    assert "with reason 'odd'" in text
    assert left(bad) == EVERY


@pytest.mark.parametrize("verb", ["replay", "purge"])
@pytest.mark.parametrize(("answer", "gone"), [("y\n", 2), ("n\n", 0)])
def test_somebody_at_a_terminal_is_told_how_many(
    bad: Shell, monkeypatch: pytest.MonkeyPatch, verb: str, answer: str, gone: int
) -> None:
    """And which, with every filter: a replay runs their work again."""
    monkeypatch.setattr("brokerd.cli.options.on_terminal", lambda: True)
    options = ("--all", "--partition", "1", "--reason", "odd")
    result = bad.run("dlq", verb, *ON, *options, input=answer)
    question = (
        f"This will {verb} 2 dead letters of partition 1 of group 'billing' of topic 'orders'"
    )
    assert f"{question} with reason 'odd'. Go on?" in result.stderr
    assert len(left(bad)) == len(EVERY) - gone


def test_what_purges_nothing_needs_no_answer(bad: Shell) -> None:
    assert bad.lines("dlq", "purge", *ON, "--all", "--reason", "none") == ["0 purged"]


@pytest.mark.parametrize("verb", ["replay", "purge"])
def test_one_or_all_must_be_said(shell: Shell, verb: str) -> None:
    """A forgotten option must not mean all of them."""
    for options in ([], ["--offset", "1", "--all"]):
        assert "name either --offset or --all" in shell.misused("dlq", verb, *ON, *options)
