# Tests: tests/spark/test_sink_staging.py
"""The staging directory: the rows of micro-batches until the broker has them. No pyspark.

Each stream, and each write with a ``writeId``, has a directory of its own below the option's
address. Its files:

=========================  ======================================================================
``sink.json``              the id in the sink's producer ids; written once
``rows/EPOCH-UUID``        the rows of one attempt of one task (`brokerd.spark.sink.blocks`)
``manifests/EPOCH.json``   the files that are the micro-batch, in order; the first one wins
``progress/EPOCH.json``    the number of blocks that the broker has
``done/EPOCH.json``        the broker has the whole micro-batch
=========================  ======================================================================

A task may run again with other rows in other files, so a micro-batch is what its manifest names.
A file is complete or absent. Everything but ``progress`` is durable when the next step begins.
"""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from brokerd.archive.contract.layout import UNFINISHED
from brokerd.archive.storage.store import Store, open_store
from brokerd.errors import BrokerdError, DamagedData
from brokerd.spark.sink.blocks import MAGIC, Block, encode_block, read_blocks

VERSION = 1
KEPT_SEQUENCES = 1_000
"""The most sequences in `Sequences`; the oldest is dropped first."""

_JSON_BYTES_MAX = 64 << 20
_AHEAD_BYTES = 4 << 20
_ABANDONED_EVERY = 64
"""Micro-batches from one search for files of killed processes to the next."""
_ABANDONED_MS = 3_600_000
"""An incomplete file that is so old belongs to a killed process."""

Sequences = OrderedDict[tuple[str, int], int]
"""The last sequence that the broker confirmed, by topic and lane, oldest first."""


class BadStaging(BrokerdError):
    """A staging directory does not belong to this stream, or is of another version."""


class StagedFile(NamedTuple):
    """A complete file of rows."""

    name: str
    blocks: int
    rows: int


class Manifest(NamedTuple):
    """The rows of one micro-batch."""

    epoch: int
    lanes: int
    """The number of producers that send it. A block's number modulo this is its lane."""
    files: tuple[StagedFile, ...]


class Progress(NamedTuple):
    """What the broker has of a micro-batch."""

    epoch: int
    blocks: int
    sequences: Sequences


class Staging:
    """The staging directory of one stream or write. No object of it is pickled.

    :param address: the option ``stagingDirectory``, or the default.
    :param name: the directory of this stream or write.
    """

    def __init__(self, address: str, name: str) -> None:
        self.name = name
        self.address = address
        self._store: Store = open_store(address)

    # -- Rows ----------------------------------------------------------------------------------

    def stage(self, epoch: int, blocks: Iterable[Block]) -> StagedFile | None:
        """Write the rows of one attempt of a task, durably. Return None if there are none."""
        output = None
        count = rows = 0
        path = self._path("rows", f"{epoch:010}-{uuid.uuid4().hex}")
        try:
            for block in blocks:
                if output is None:
                    output = self._store.create(path.rpartition("/")[0])
                    output.write(MAGIC)
                output.write(encode_block(block))
                count += 1
                rows += len(block.messages)
            if output is None:
                return None
            output.publish(path)
            return StagedFile(path.rpartition("/")[2], count, rows)
        finally:
            if output is not None:
                output.discard()

    def read(self, manifest: Manifest, skipped: int = 0) -> Iterator[Block]:
        """Yield the blocks of a micro-batch in order, without the first ``skipped`` ones.

        :raises DamagedData: a file is not as it was written.
        :raises FileNotFoundError: a file is gone.
        """
        for staged in manifest.files:
            if skipped >= staged.blocks:
                skipped -= staged.blocks
                continue
            path = self._path("rows", staged.name)
            file = self._store.open(path, _AHEAD_BYTES)
            count = skipped
            for block in read_blocks(file, f"{self.address}/{path}", skipped):
                count += 1
                yield block
            if count != staged.blocks:
                raise DamagedData(
                    f"{self.address}/{path} has {count} blocks, and the task wrote {staged.blocks}:"
                    " restore the file; without it the rows of the micro-batch cannot be sent"
                )
            skipped = 0

    def delete(self, files: Iterable[StagedFile]) -> None:
        """Delete the rows of tasks."""
        self._store.delete([self._path("rows", file.name) for file in files])

    # -- The state of micro-batches --------------------------------------------------------------

    def identity(self) -> str:
        """Return the id of this directory. Make the directory if it is new."""
        found = self._get("sink.json")
        if found is None:
            directories = ("manifests", "progress", "done")
            for directory in ("", self.name, *map(self._path, directories)):
                self._store.make_directory(directory)
            self._put_if_absent("sink.json", {"version": VERSION, "id": uuid.uuid4().hex})
            found = self._get("sink.json")
        if found is None:
            raise BadStaging(f"{self.address}/{self._path('sink.json')} was deleted meanwhile")
        return str(found["id"])

    def publish_manifest(self, manifest: Manifest) -> tuple[Manifest, bool]:
        """Write the manifest of a micro-batch unless it has one.

        :return: the one that it has, and whether it is new.
        """
        files = [list(file) for file in manifest.files]
        fields = {"version": VERSION, "lanes": manifest.lanes, "files": files}
        is_new = self._put_if_absent(_json_path("manifests", manifest.epoch), fields)
        found = self.manifest(manifest.epoch)
        if found is None:
            raise BadStaging(f"a manifest in {self.address}/{self.name} was deleted meanwhile")
        return found, is_new

    def manifest(self, epoch: int) -> Manifest | None:
        """Return the manifest of a micro-batch, or None if it has none."""
        fields = self._get(_json_path("manifests", epoch))
        if fields is None:
            return None
        files = tuple(StagedFile(*file) for file in fields["files"])
        return Manifest(epoch, int(fields["lanes"]), files)

    def progress(self, epoch: int) -> Progress | None:
        """Return what the broker has of a micro-batch, or None if that is unknown.

        A stop of the machine may have lost the content of the file, and not its name.
        """
        return self._progress("progress", epoch, may_be_cut=True)

    def put_progress(self, progress: Progress) -> None:
        """Replace the progress of a micro-batch. A stop of the machine may lose it."""
        path = self._path(_json_path("progress", progress.epoch))
        self._store.put(path, _packed(_progress_fields(progress)), durable=False)

    def last_done(self) -> Progress | None:
        """Return the last micro-batch that the broker has whole."""
        epochs = self._epochs("done")
        return self._progress("done", max(epochs)) if epochs else None

    def put_done(self, progress: Progress) -> None:
        """Note that the broker has a whole micro-batch, durably."""
        self._put_if_absent(_json_path("done", progress.epoch), _progress_fields(progress))

    def clean(self, done: int) -> None:
        """Delete what belongs to micro-batches before the last one that is done."""
        for directory in ("manifests", "progress", "done"):
            old = [epoch for epoch in self._epochs(directory) if epoch < done]
            self._store.delete([self._path(_json_path(directory, epoch)) for epoch in old])
        names = self._store.names(self._path("rows"))
        self._store.delete([self._path("rows", name) for name in names if _is_old(name, done)])
        if done % _ABANDONED_EVERY == 0:
            self._delete_abandoned(done)

    def _delete_abandoned(self, done: int) -> None:
        """Delete incomplete files of killed processes, by the clock of the disk or server."""
        now_ms = self._store.stat(self._path(_json_path("done", done))).changed_ms
        entries = list(self._store.list(self.name))
        self._store.delete(
            [
                entry.path
                for entry in entries
                if _is_incomplete(entry.path) and entry.changed_ms < now_ms - _ABANDONED_MS
            ]
        )

    # -- Files -----------------------------------------------------------------------------------

    def _path(self, *names: str) -> str:
        return "/".join((self.name, *names))

    def _epochs(self, directory: str) -> list[int]:
        names = self._store.names(self._path(directory))
        epochs = (_epoch_of(name) for name in names if name.endswith(".json"))
        return [epoch for epoch in epochs if epoch is not None]

    def _progress(self, directory: str, epoch: int, may_be_cut: bool = False) -> Progress | None:
        fields = self._get(_json_path(directory, epoch), may_be_cut)
        if fields is None:
            return None
        sequences = Sequences({(topic, lane): last for topic, lane, last in fields["sequences"]})
        return Progress(epoch, int(fields["blocks"]), sequences)

    def _get(self, path: str, may_be_cut: bool = False) -> dict[str, Any] | None:
        """Return the content of a file, or None without one.

        :param may_be_cut: whether a file that is not JSON counts as absent.
        """
        try:
            fields = json.loads(self._store.read(self._path(path), _JSON_BYTES_MAX))
        except FileNotFoundError:
            return None
        except ValueError:
            if may_be_cut:
                return None
            fields = None
        version = fields.get("version") if isinstance(fields, dict) else None
        if version != VERSION:
            raise BadStaging(
                f"{self.address}/{self._path(path)} has version {version}, and this brokerd reads "
                f"version {VERSION}: upgrade the brokerd that Spark uses, or restore the file"
            )
        found: dict[str, Any] = fields
        return found

    def _put_if_absent(self, path: str, fields: dict[str, Any]) -> bool:
        full = self._path(path)
        is_first = self._store.put_if_absent(full, _packed(fields))
        self._store.sync_directory(full.rpartition("/")[0])
        return is_first


def add_sequence(sequences: Sequences, topic: str, lane: int, sequence: int) -> None:
    """Remember a sequence that the broker has confirmed."""
    sequences[topic, lane] = sequence
    sequences.move_to_end((topic, lane))
    while len(sequences) > KEPT_SEQUENCES:
        sequences.popitem(last=False)


def other_files(files: Sequence[StagedFile], manifest: Manifest) -> list[StagedFile]:
    """Return the files that a manifest does not name."""
    named = {file.name for file in manifest.files}
    return [file for file in files if file.name not in named]


def _json_path(directory: str, epoch: int) -> str:
    return f"{directory}/{epoch:010}.json"


def _epoch_of(name: str) -> int | None:
    """Return the micro-batch of a file, or None for a file of another kind."""
    digits = name[:10]
    return int(digits) if digits.isascii() and digits.isdigit() else None


def _is_old(name: str, done: int) -> bool:
    epoch = _epoch_of(name)
    return epoch is not None and epoch < done


def _is_incomplete(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.startswith(UNFINISHED) or (name.startswith(".") and name.endswith(".tmp"))


def _progress_fields(progress: Progress) -> dict[str, Any]:
    sequences = [[topic, lane, last] for (topic, lane), last in progress.sequences.items()]
    return {"version": VERSION, "blocks": progress.blocks, "sequences": sequences}


def _packed(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()
