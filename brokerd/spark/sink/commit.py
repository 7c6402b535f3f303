# Tests: tests/spark/test_sink_commit.py
"""Commits a micro-batch exactly once, also after a kill at any moment. No pyspark.

1. The manifest is written, unless the micro-batch has one. The tasks of a repeated micro-batch may
   have cut its rows differently, so only the first manifest counts.
2. The blocks of the manifest are sent, in order. Block *n* of micro-batch *e* has the lane
   ``n % lanes`` and the sequence ``e << 32 | n``, so a block that is sent again has the same ones.
3. The micro-batch is marked as done. A repetition after that sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from brokerd.codecs.mamamia import BatchMessage
from brokerd.errors import BrokerdError
from brokerd.spark.sink.blocks import Block
from brokerd.spark.sink.sender import Numbered, Sender, SequenceTaken
from brokerd.spark.sink.staging import (
    BadStaging,
    Manifest,
    Progress,
    Sequences,
    StagedFile,
    Staging,
    add_sequence,
    other_files,
)

EPOCH_SHIFT = 32
"""Bits of the block's number in a sequence; the micro-batch is above them."""


ROUND_BYTES = 32 << 20
"""The most bytes of a round, unless it has a single larger block."""


class ForgottenProducer(BrokerdError):
    """The broker has forgotten the sink, so it cannot tell which rows it has."""


def commit_epoch(
    staging: Staging,
    sender: Sender,
    epoch: int,
    files: Sequence[StagedFile],
    lanes: int,
    fail_on_forgotten: bool,
) -> bool:
    """Store the rows of a micro-batch, once. Return False if the broker had all of them before.

    :param files: what its tasks staged this time.
    :raises BadStaging: a later micro-batch is done.
    :raises SequenceTaken: the broker has batches of this micro-batch from another process.
    :raises ForgottenProducer: and `fail_on_forgotten` is set.
    """
    done = staging.last_done()
    if done is not None and epoch < done.epoch:
        raise BadStaging(
            f"{staging.address}/{staging.name} says that micro-batch {done.epoch} is stored, and "
            f"Spark commits micro-batch {epoch}: the checkpoint has gone back. Its rows are stored "
            "already; to store them again, use a new checkpointLocation and stagingDirectory"
        )
    if done is not None and epoch == done.epoch:
        manifest = staging.manifest(epoch)
        staging.delete(files if manifest is None else other_files(files, manifest))
        return False
    before = Sequences() if done is None else done.sequences
    try:
        manifest = Manifest(epoch, lanes, tuple(files))
        _check_unused(staging, sender, manifest)
        manifest, is_new = staging.publish_manifest(manifest)
        staging.delete(other_files(files, manifest))
        progress = staging.progress(epoch) or Progress(epoch, 0, before)
        known = _KnownProducers(sender, progress.sequences, not is_new and fail_on_forgotten)
        blocks = staging.read(manifest, progress.blocks)
        progress = _send(staging, sender, manifest, progress, blocks, known)
    except FileNotFoundError:
        done = staging.last_done()
        if done is not None and done.epoch >= epoch:  # another process has finished it meanwhile
            return False
        raise
    staging.put_done(progress)
    staging.clean(epoch)
    return True


def abort_epoch(staging: Staging, epoch: int, files: Sequence[StagedFile]) -> None:
    """Delete the rows that tasks staged, unless a manifest names them: a retry sends those."""
    manifest = staging.manifest(epoch)
    staging.delete(files if manifest is None else other_files(files, manifest))


def send_directly(sender: Sender, blocks: Iterable[Block], lanes: int) -> int:
    """Send blocks without staging; return the number of rows."""
    rows = 0
    for round_ in _rounds(number_blocks(blocks, 0, 0, lanes), lanes):
        sender.send(round_)
        rows += sum(len(one.block.messages) for one in round_)
    return rows


def number_blocks(
    blocks: Iterable[Block], epoch: int, first: int, lanes: int
) -> Iterator[Numbered]:
    """Yield blocks with their lanes and sequences; `first` is the number of the first one."""
    for number, block in enumerate(blocks, first):
        yield Numbered(number % lanes, epoch << EPOCH_SHIFT | number, block)


def _check_unused(staging: Staging, sender: Sender, manifest: Manifest) -> None:
    """Check that the broker has no batch of a micro-batch that has no manifest yet.

    :raises SequenceTaken: it has one, which would be taken for a batch of this micro-batch.
    """
    if staging.manifest(manifest.epoch) is not None:
        return
    numbered = number_blocks(staging.read(manifest), manifest.epoch, 0, manifest.lanes)
    first = next(_rounds(numbered, manifest.lanes), [])
    is_taken = sender.has_any([(one.block.topic, one.lane, one.sequence) for one in first])
    # Another process of this stream may have begun meanwhile; it has a manifest.
    if is_taken and staging.manifest(manifest.epoch) is None:
        raise SequenceTaken(
            f"the broker has batches of micro-batch {manifest.epoch} already, and "
            f"{staging.address}/{staging.name} knows nothing of them: a copy of the checkpoint was "
            "restored, or another stream runs with one; begin with a new checkpointLocation and "
            "stagingDirectory"
        )


def _send(
    staging: Staging,
    sender: Sender,
    manifest: Manifest,
    progress: Progress,
    blocks: Iterator[Block],
    known: _KnownProducers,
) -> Progress:
    """Send the rest of a micro-batch, and return the progress at its end."""
    epoch, sent, sequences = progress
    for round_ in _rounds(number_blocks(blocks, epoch, sent, manifest.lanes), manifest.lanes):
        known.check(round_)
        sender.send(round_)
        sent += len(round_)
        for one in round_:
            add_sequence(sequences, one.block.topic, one.lane, one.sequence)
        staging.put_progress(Progress(epoch, sent, sequences))
    return Progress(epoch, sent, sequences)


class _KnownProducers:
    """Checks that the broker remembers the producers of blocks that it may have already.

    :param sequences: the last sequences that the broker confirmed.
    :param is_checked: whether an earlier process may have sent some of the blocks, and a broker
        that has forgotten the sink is an error.
    """

    def __init__(self, sender: Sender, sequences: Sequences, is_checked: bool) -> None:
        self._sender = sender
        self._sequences = dict(sequences)
        self._is_checked = is_checked

    def check(self, round_: Sequence[Numbered]) -> None:
        """Ask the broker before a round is sent.

        :raises ForgottenProducer: it has forgotten one.
        """
        for one in round_:
            topic = one.block.topic
            last = self._sequences.pop((topic, one.lane), None)
            if last is None or not self._is_checked:
                continue
            if not self._sender.has_sequence(topic, one.lane, last):
                raise ForgottenProducer(
                    f"the broker does not know the last batch that the sink sent to the topic "
                    f"{topic!r}: other producers displaced it (limits.producers), the topic was "
                    "deleted, or an older copy of the log was restored. Rows of this micro-batch "
                    "may be stored already: compare, and set failOnForgottenProducer to false for "
                    "one run, which may store rows twice"
                )


def _rounds(blocks: Iterator[Numbered], lanes: int) -> Iterator[list[Numbered]]:
    """Group consecutive blocks: at most one for each lane, and no more than `ROUND_BYTES`."""
    round_: list[Numbered] = []
    size = 0
    for one in blocks:
        bytes_ = sum(map(_size, one.block.messages))
        if round_ and (len(round_) == lanes or size + bytes_ > ROUND_BYTES):
            yield round_
            round_, size = [], 0
        round_.append(one)
        size += bytes_
    if round_:
        yield round_


def _size(message: BatchMessage) -> int:
    return len(message.value) + len(message.key or b"") + len(message.metadata or b"")
