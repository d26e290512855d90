"""The journal of a run: one line per finished case, on disk before the next case starts.

A run that is killed at any moment resumes from it. Appending is the only way to write; the last line of a case wins.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfkit.errors import InputError, WriteError
from perfkit.files import sync_folder
from perfkit.results.schema import FINISHED, SCHEMA_VERSION, STATUSES, dumps
from perfkit.results.version import check_schema

NAME = "cases.jsonl"
FIELDS = ("schema", "case_id", "group_id", "attempt", "status", "reason", "started", "ended", "row")


class Journal:
    """``cases.jsonl`` of a run folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._repaired = False

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one finished case and wait until it is on disk.

        Args:
            record: case_id and status at least; of :data:`FIELDS`, those absent become null. ``schema`` is added.

        Raises:
            ValueError: a field that does not exist, no case_id, or an unknown status.
            WriteError: the file cannot be written (a full disk, say).
            InputError: it holds a bad line.
        """
        unknown = set(record) - set(FIELDS)
        if unknown or not isinstance(record.get("case_id"), str) or record.get("status") not in STATUSES:
            raise ValueError(f"not a journal record: {sorted(unknown) or dict(record)}")
        full = {name: record.get(name) for name in FIELDS} | {"schema": SCHEMA_VERSION}
        line = (dumps(full) + "\n").encode()
        try:
            if not self._repaired:
                self._repair()
            with self.path.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            self._repaired = False  # part of the line may be there
            raise WriteError(f"cannot write: {error.strerror or error}", file=self.path) from error

    def read(self) -> dict[str, dict[str, Any]]:
        """Return the last record of each case by case_id, in the order in which cases first finished.

        A last line that is unfinished is dropped: the process was killed while it wrote it. A missing file is empty.

        Raises:
            InputError: any other line that is not a record, or one of another schema version; names file and line.
        """
        records: dict[str, dict[str, Any]] = {}
        data = self._bytes()
        lines = data[: self._finished(data)].removesuffix(b"\n")
        for number, line in enumerate(lines.split(b"\n") if lines else [], start=1):
            record = self._parse(line, number)
            records[record["case_id"]] = record
        return records

    def finished(self) -> set[str]:
        """Return the cases that a resumed run need not run again."""
        return {case_id for case_id, record in self.read().items() if record["status"] in FINISHED}

    def attempts(self, case_id: str) -> int:
        """Return how often a case was tried, by its last record."""
        record = self.read().get(case_id)
        return int(record["attempt"] or 0) if record else 0

    def _bytes(self) -> bytes:
        try:
            return self.path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return b""
        except OSError as error:
            raise InputError(f"cannot read: {error.strerror or error}", file=self.path) from error

    @staticmethod
    def _finished(data: bytes) -> int:
        """Return the length of the part that holds whole lines; a last record that lacks only its newline is whole."""
        end = data.rfind(b"\n") + 1
        try:
            whole = isinstance(json.loads(data[end:]), dict)
        except ValueError:
            whole = False
        return len(data) if whole else end

    def _repair(self) -> None:
        """Cut off an unfinished last line, so that the next one starts on its own."""
        existed = self.path.exists()
        data = self._bytes()
        end = self._finished(data)
        with self.path.open("ab") as file:
            file.truncate(end)
            if data[:end] and not data[:end].endswith(b"\n"):
                file.write(b"\n")
        if not existed:
            sync_folder(self.path.parent)
        self._repaired = True

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        field = f"line {number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            text = line.decode(errors="replace")
            raise InputError("not JSON", file=self.path, field=field, value=text) from error
        if not isinstance(record, dict):
            raise InputError("must be a JSON object", file=self.path, field=field, value=type(record).__name__)
        check_schema(record.get("schema"), file=self.path, field=f"{field}: schema")
        for name, kind in (("case_id", str), ("row", dict)):
            value = record.get(name)
            if not isinstance(value, kind) and not (name == "row" and value is None):
                raise InputError(
                    f"must be {kind.__name__}", file=self.path, field=f"{field}: {name}", value=repr(value)
                )
        if record.get("status") not in STATUSES:
            raise InputError("unknown status", file=self.path, field=f"{field}: status", value=record.get("status"),
                             allowed=STATUSES)  # fmt: skip
        for name in FIELDS:
            record.setdefault(name, None)
        return record
