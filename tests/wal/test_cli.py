"""``brokerctl wal``: what a user sees, in lines and in JSON, and the exit codes."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgpack
import pytest
from click.testing import CliRunner, Result

from brokerd.archive.contract.bounds import Bounds, encode_bounds
from brokerd.cli.wal.commands import wal_group
from brokerd.errors import ConfigError, DamagedData
from brokerd.wal import RealDisk, SnapshotChunk, Snapshots, Wal
from brokerd.walformat import Entry, EntryKind, SegmentHeader, decode_segment_header
from simulator.machine.inline import InlinePool
from tests.wal.rig import SMALL, events, records


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    commits = InlinePool()
    wal = Wal(
        RealDisk(),
        str(tmp_path / "wal"),
        SMALL,
        commits,
        InlinePool(),
        random.Random(1).randbytes,
        lambda: 0.0,
    )
    wal.open(0, lambda frame: None)
    topic = Entry(EntryKind.TOPIC, 1, 0, 0, 0, msgpack.packb({"op": "created", "name": "orders"}))
    wal.append([topic, records(0, 3)], 1_700_000_000_000_000)
    commits.run()
    wal.append([records(0, topic_id=2), events(1)], 1_700_000_001_000_000)
    commits.run()
    return tmp_path


def append(data_dir: Path, *entries: Entry) -> None:
    """Go on with the log by one frame."""
    commits, background = InlinePool(), InlinePool()
    wal = Wal(
        RealDisk(),
        str(data_dir / "wal"),
        SMALL,
        commits,
        background,
        random.Random(2).randbytes,
        lambda: 0.0,
    )
    wal.open(0, lambda frame: None)
    wal.append(entries, 1_700_000_002_000_000)
    commits.run()
    wal.close(lambda error: None)
    commits.run()


def segment(data_dir: Path) -> Path:
    return next((data_dir / "wal").glob("*.wal"))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))


def run(data_dir: Path, *args: str, as_json: bool = False) -> Result:
    return CliRunner().invoke(
        wal_group, args, obj={"data_dir": str(data_dir), "json": as_json}, catch_exceptions=False
    )


class TestVerify:
    def test_a_sound_log(self, data_dir: Path) -> None:
        result = run(data_dir, "verify")
        assert result.exit_code == 0
        assert "1 segments, 2 frames, 4 entries, 4 records" in result.output
        assert result.output.endswith("sound\n")

    def test_a_late_topic_entry_is_told_and_is_no_damage(self, data_dir: Path) -> None:
        topic = Entry(EntryKind.TOPIC, 2, 0, 0, 0, msgpack.packb({"op": "created", "name": "t"}))
        append(data_dir, records(3), topic)
        result = run(data_dir, "verify")
        assert result.exit_code == 0
        [line] = [line for line in result.output.splitlines() if line.startswith("no damage")]
        assert line.endswith(
            "a TOPIC entry follows an entry of another kind, as older versions wrote it"
        )
        fields = json.loads(run(data_dir, "verify", as_json=True).output)
        assert fields["sound"] and len(fields["late_topics"]) == 1

    def test_what_was_deleted_on_purpose_is_told_and_is_no_damage(self, data_dir: Path) -> None:
        wal = Wal(
            RealDisk(),
            str(data_dir / "wal"),
            SMALL,
            commits := InlinePool(),
            background := InlinePool(),
            random.Random(2).randbytes,
            lambda: 0.0,
        )
        end = wal.open(0, lambda frame: None).next_lsn
        wal.append([records(3)], 1_700_000_002_000_000)
        commits.run()
        store = Snapshots(RealDisk(), str(data_dir / "state"), random.Random(3).randbytes)
        for lsn in (end, end + 8):
            store.write(lsn, [SnapshotChunk(1000, b"", lsn, b"state")])
        wal.deleter.delete(wal.deleter.plan_removal({}, (), store.second_newest() or 0).run())
        background.run()
        assert len(list((data_dir / "wal").glob("*.wal"))) == 1
        result = run(data_dir, "verify")
        assert result.exit_code == 0
        told = f"deleted on purpose, since its records are removed or archived: LSN 0 to {end}"
        assert told in result.output.splitlines()
        assert result.output.endswith("sound\n")
        fields = json.loads(run(data_dir, "verify", as_json=True).output)
        assert fields["deleted"] == [{"first": 0, "end": end}]
        assert run(data_dir, "dump").exit_code == 0

    def test_the_directory_comes_first(self, data_dir: Path) -> None:
        """Nobody takes the report of one directory for that of another."""
        place = f"in {data_dir / 'wal'}:"
        for verb in ("verify", "dump"):
            assert run(data_dir, verb).output.splitlines()[0] == place
            line = run(data_dir, verb, as_json=True).output.splitlines()[0]
            assert json.loads(line)["directory"] == str(data_dir / "wal")

    def test_a_damaged_log(self, data_dir: Path) -> None:
        flip(segment(data_dir), 4096)
        result = run(data_dir, "verify")
        assert result.exit_code == 1
        assert f"DAMAGE {segment(data_dir).name} at 4096" in result.output
        command = f"brokerctl --data-dir {data_dir} wal repair --dry-run"
        assert result.output.endswith(f"once the broker is stopped: {command}\nDAMAGED\n")

    def test_a_damaged_header_block_alone_loses_no_record_and_says_so(self, data_dir: Path) -> None:
        flip(segment(data_dir), 8)
        result = run(data_dir, "verify")
        assert f"DAMAGE {segment(data_dir).name} at 0 to 4096" in result.output
        assert "no record is lost by that" in result.output
        assert result.exit_code == 1

    def test_a_torn_tail(self, data_dir: Path) -> None:
        end = json.loads(run(data_dir, "verify", as_json=True).output)["next_lsn"]
        flip(segment(data_dir), end)
        result = run(data_dir, "verify")
        assert result.exit_code == 0
        assert "no damage" in result.output

    def test_json(self, data_dir: Path) -> None:
        flip(segment(data_dir), 4096)
        result = run(data_dir, "verify", as_json=True)
        found = json.loads(result.output)
        assert result.exit_code == 1 and found["sound"] is False
        assert found["damages"][0]["file"] == segment(data_dir).name

    def test_a_directory_without_a_log_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="--data-dir"):
            run(tmp_path / "none", "verify")


class TestDump:
    def test_lines(self, data_dir: Path) -> None:
        result = run(data_dir, "dump")
        assert result.exit_code == 0
        assert "lsn 4096 (00000000000000000000.wal at 4096)" in result.output
        assert "2023-11-14T22:13:20+00:00" in result.output
        assert "  records topic id 1 partition 0 offsets 0-2" in result.output
        assert "    g: settled offset=1" in result.output
        assert "'name': 'orders'" in result.output

    def test_subscriptions_are_told_by_id_and_group(self, data_dir: Path) -> None:
        body = msgpack.packb({"op": "made", "id": 7, "group": "__blipmq.7", "qos": 1})
        append(data_dir, Entry(EntryKind.SUBSCRIPTION, 1, 0, 0, 0, body))
        result = run(data_dir, "dump")
        assert "  subscription topic id 1 partition 0" in result.output
        assert "'op': 'made', 'id': 7, 'group': '__blipmq.7'" in result.output

    @pytest.mark.parametrize("options", [[], ["--payloads"]])
    def test_accounts_and_keys_are_told_without_their_hashes(
        self, data_dir: Path, options: list[str]
    ) -> None:
        for body in (
            {"op": "account", "name": "ann", "password": "$argon2id$hush"},
            {"op": "key", "id": "00ff", "owner": "ann", "digest": b"hush"},
        ):
            append(data_dir, Entry(EntryKind.SECURITY, 0, 0, 0, 0, msgpack.packb(body)))
        result = run(data_dir, "dump", *options)
        assert "    {'op': 'account', 'name': 'ann'}" in result.output
        assert "    {'op': 'key', 'id': '00ff', 'owner': 'ann'}" in result.output
        assert "hush" not in result.output
        assert "aHVzaA" not in result.output

    def test_schemas_are_told_with_their_texts(self, data_dir: Path) -> None:
        body = {"op": "registered", "name": "order", "version": 1, "definition": b'{"a": 1}\xff'}
        append(data_dir, Entry(EntryKind.SCHEMA, 0, 0, 0, 0, msgpack.packb(body)))
        result = run(data_dir, "dump")
        assert """'name': 'order', 'version': 1, 'definition': '{"a": 1}\\\\xff'""" in result.output

    def test_payloads_only_when_asked(self, data_dir: Path) -> None:
        assert "MQ==" not in run(data_dir, "dump").output
        assert "    values 1: MQ==" in run(data_dir, "dump", "--payloads").output

    def test_json_filters_and_limits(self, data_dir: Path) -> None:
        def frames(*args: str) -> list[dict[str, object]]:
            output = run(data_dir, "dump", *args, as_json=True).output
            return [json.loads(line) for line in output.splitlines()]

        both = frames()
        assert [frame["lsn"] for frame in both] == [4096, both[1]["lsn"]]
        assert frames("--from-lsn", str(both[1]["lsn"])) == both[1:]
        assert frames("--limit", "1") == both[:1]
        (only,) = frames("--topic-id", "2")
        assert [entry["topic_id"] for entry in only["entries"]] == [2]  # type: ignore[attr-defined]
        assert len(frames("--kind", "records")) == 2
        assert frames("--kind", "mark") == []
        assert frames("--partition", "5") == []

    def test_damage_is_shown_and_the_rest_too(self, data_dir: Path) -> None:
        flip(segment(data_dir), 4096)
        result = run(data_dir, "dump")
        assert result.exit_code == 1
        assert "UNREADABLE 00000000000000000000.wal at 4096" in result.output
        assert "records topic id 2" in result.output

    def test_a_body_that_makes_no_sense_is_said_not_thrown(self, data_dir: Path) -> None:
        commits = InlinePool()
        random_bytes = random.Random(2).randbytes
        path = str(data_dir / "wal")
        wal = Wal(RealDisk(), path, SMALL, commits, commits, random_bytes, lambda: 0.0)
        wal.open(0, lambda frame: None)
        wal.append([events(0)._replace(body=b"?")], 1)
        commits.run()
        assert "makes no sense" in run(data_dir, "dump").output


class TestTheEndOfTheLog:
    """``state/bounds`` says how far the log was, and which segment stands there."""

    def publish(self, data_dir: Path, lsn: int, segment_id: bytes) -> None:
        (data_dir / "state").mkdir()
        bounds = Bounds("0" * 32, lsn, 0, True, 3, [], [], lsn, 0, segment_id.hex())
        (data_dir / "state" / "bounds").write_bytes(encode_bounds(bounds))

    def header(self, data_dir: Path) -> SegmentHeader:
        return decode_segment_header(segment(data_dir).read_bytes()[:4096])

    def test_verify_says_that_it_was_cut_and_a_repair_would_record_it(self, data_dir: Path) -> None:
        self.publish(data_dir, 4096 + 200, self.header(data_dir).segment_id)
        assert run(data_dir, "verify").exit_code == 0
        path = segment(data_dir)
        path.write_bytes(path.read_bytes()[:4200])
        result = run(data_dir, "verify")
        assert result.exit_code == 1
        assert "to 65536: the file ends at 4200; a segment after it is missing" in result.output
        assert "by state/bounds the log was on the disk up to LSN 4296" in result.output
        plan = run(data_dir, "repair", "--dry-run")
        assert plan.exit_code == 1
        assert "to 65536 on record" in plan.output

    def test_both_refuse_a_file_of_another_segment(self, data_dir: Path) -> None:
        self.publish(data_dir, 4096 + 200, bytes(16))
        before = segment(data_dir).read_bytes()
        for command in (("verify",), ("repair",)):
            with pytest.raises(DamagedData, match=r"another segment .* by state/bounds"):
                run(data_dir, *command)
        assert segment(data_dir).read_bytes() == before
