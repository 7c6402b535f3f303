"""Splits as text: nothing is lost, and what is no text of splits is refused."""

from __future__ import annotations

import zlib
from base64 import b64encode
from pathlib import Path

import msgspec
import pytest

from brokerd.archive.contract.bounds import DamagedPlace
from brokerd.archive.contract.topic_names import TopicNames
from brokerd.spark.plan.split_text import BadSplits, decode_splits, encode_splits
from tests.spark.logs import Log


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A log with an archive, a sealed file and an open one."""
    log = Log(tmp_path / "data")
    for name in ("one", "two"):
        topic_id = log.create(name)
        log.append(topic_id, 0, b"a", b"b", expires_at=1 << 62)
        log.append(topic_id, 1, b"c")
        log.seal()
        log.publish()
        log.roll_up()
    log.append(1, 0, b"d")
    log.seal()
    log.append(1, 1, b"e")
    log.trim(1, 0, 1)
    log.damage.append(DamagedPlace(log.sealed[-1].name, 40, 50))
    log.publish()
    return log


@pytest.mark.parametrize("topics", [None, ("o*", "two")])
def test_splits_are_the_same_after_a_way_as_text(log: Log, topics: tuple[str, ...] | None) -> None:
    """All of their fields, with the types of each."""
    splits = list(log.plan(topics=topics, from_time_us=5, partition_bytes=1).splits)
    assert any(split.files for split in splits) and any(split.segments for split in splits)
    assert any(split.damage for split in splits) and any(split.names for split in splits)
    text = encode_splits(splits)
    found = decode_splits(text)
    assert [_comparable(split) for split in found] == [_comparable(split) for split in splits]
    assert text.isascii() and encode_splits(found) == text


def _comparable(split: object) -> str:
    return repr(
        split._replace(predicate=split.predicate._replace(names=split.predicate.names.names))
    )  # type: ignore[attr-defined]


def _packed(value: object) -> str:
    return b64encode(zlib.compress(msgspec.msgpack.encode(value))).decode()


@pytest.mark.parametrize(
    "text", ["", "?", "AAAA", _packed({"a": 1}), _packed([[1, 2]]), _packed(["x"] * 9)]
)
def test_a_text_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadSplits, match="leave it out, or use the same brokerd"):
        decode_splits(text)


@pytest.mark.parametrize("names", [7, ["a", 1]])
def test_names_of_topics_are_texts(log: Log, names: object) -> None:
    """A type of brokerd is made of what it takes, and of nothing else."""
    (split, *_) = log.plan().splits

    def encode(value: object) -> object:
        assert isinstance(value, TopicNames)
        return names

    data = msgspec.msgpack.encode([split], enc_hook=encode)
    with pytest.raises(BadSplits):
        decode_splits(b64encode(zlib.compress(data)).decode())
