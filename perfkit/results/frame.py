"""Rows to ``results.parquet`` and ``results.csv``, and a run back to a frame.

Both files hold the same rows in the same order with the same types, are written once a run has ended, and replace what
was there in one step. Parquet keeps integers with gaps as integers; the CSV writes an absent value as nothing.
"""

from __future__ import annotations

import csv
import importlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit.errors import InputError
from perfkit.files import replacing
from perfkit.results import journal, manifest
from perfkit.results.schema import COLUMNS, SCHEMA, SCHEMA_VERSION, check_row
from perfkit.results.version import check_schema

if TYPE_CHECKING:
    import pandas as pd

PARQUET, CSV = "results.parquet", "results.csv"
_PANDAS: dict[type, Any] = {str: "string", int: "Int64", float: "float64"}
_METADATA_KEY = b"perfkit_schema"


def write_frame(run_dir: str | Path, rows: Iterable[Mapping[str, Any]]) -> tuple[Path, Path]:
    """Write ``results.parquet`` and ``results.csv``, the same bytes for the same rows; returns their paths.

    Raises:
        ValueError: a row that :func:`perfkit.results.check_row` refuses, or a case_id twice with the same source.
        WriteError: the folder cannot be written.
    """
    full = [check_row(row) for row in rows]
    # A recorded row may stand beside the prediction of the same case.
    ids = [(row["case_id"], row["source"]) for row in full]
    if len(set(ids)) != len(ids):
        raise ValueError(f"case_id twice: {sorted({key[0] for key in ids if ids.count(key) > 1})}")
    parquet, table = Path(run_dir) / PARQUET, Path(run_dir) / CSV
    with replacing(parquet) as first:
        _write_parquet(first, full)
        with replacing(table) as second:  # inside: neither is renamed before both are written
            write_csv(second, full)
    return parquet, table


def discard_frame(run_dir: str | Path) -> None:
    """Remove both files: a run that goes on is no longer what they say."""
    for name in (PARQUET, CSV):
        (Path(run_dir) / name).unlink(missing_ok=True)


def _write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    pa, pq = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    fields = [pa.field(name, kinds[column.type], nullable=column.nullable) for name, column in SCHEMA.items()]
    schema = pa.schema(fields, metadata={_METADATA_KEY: str(SCHEMA_VERSION).encode()})
    arrays = [pa.array([row[field.name] for row in rows], type=field.type) for field in fields]
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path, compression="zstd")


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV: a header, Unix line ends, shortest decimals that restore each number, nothing for None."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([row[name] for name in COLUMNS] for row in rows)


def load_run(run_dir: str | Path, *, any_schema: bool = False) -> pd.DataFrame:
    """Return the rows of a run: from ``results.parquet``, else ``results.csv``, else the journal of an unfinished run.

    Args:
        run_dir: a run folder, or one ``.csv`` or ``.parquet`` file of the same columns.
        any_schema: take files of another schema version too; the caller looks at ``schema_version``.

    Returns:
        One row per case; the known columns in order (those that the file lacks are empty), then any others. Text is
        pandas' ``string``, integers ``Int64``, numbers ``float64``.

    Raises:
        InputError: nothing to read, a damaged file, a column missing, or another schema version.
    """
    path = Path(run_dir)
    if path.is_dir():
        found = next((path / name for name in (PARQUET, CSV, journal.NAME) if (path / name).is_file()), None)
        if found is None:
            if (path / manifest.NAME).is_file():
                raise InputError("no case of this run is finished yet", file=path)
            allowed = f"a folder with {PARQUET}, {CSV} or {journal.NAME}"
            raise InputError("not a run of perfkit", file=path, allowed=allowed)
        path = found
    elif not path.is_file():
        raise InputError("no such run", file=path)
    if path.suffix == ".parquet":
        return _typed(_read_parquet(path), path, any_schema)
    if path.suffix == ".csv":
        return _typed(_read_csv(path), path, any_schema)
    return _typed(_read_journal(path), path, any_schema)


def plain_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame as mappings, absent values as None."""
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def _read_parquet(path: Path) -> pd.DataFrame:
    pa, pq = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"not a Parquet file: {str(error).splitlines()[0]}", file=path) from error
    import pandas as pd

    kinds = {pa.string(): pd.StringDtype(), pa.int64(): pd.Int64Dtype()}
    frame: pd.DataFrame = table.to_pandas(types_mapper=kinds.get)
    return frame


def _read_csv(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        # Everything as text first: a damaged number is then named with its column.
        return pd.read_csv(path, dtype="string", keep_default_na=False, na_values=[""])
    except (ValueError, OSError) as error:
        raise InputError(f"not a CSV file: {str(error).splitlines()[0]}", file=path) from error


def _read_journal(path: Path) -> pd.DataFrame:
    import pandas as pd

    rows = [record["row"] for record in journal.Journal(path).read().values() if record["row"]]
    return pd.DataFrame(rows, columns=None if rows else list(COLUMNS), dtype="object")


def _typed(frame: pd.DataFrame, path: Path, any_schema: bool) -> pd.DataFrame:
    """Return the frame with the known columns first, each with its type; check the version, unless any will do."""
    import pandas as pd

    for name in ("schema_version", "case_id"):
        if name not in frame:
            raise InputError("column is missing", file=path, field=name)
    for version in () if any_schema else frame["schema_version"].unique():
        number = None if pd.isna(version) else str(version)
        check_schema(int(number) if number and number.isdecimal() else number, file=path, field="schema_version")
    columns: dict[str, Any] = {}
    for name, column in SCHEMA.items():
        values = frame[name] if name in frame else pd.Series([None] * len(frame), index=frame.index, dtype="object")
        try:
            if column.type is not str and values.dtype != object:  # of text; from a journal they are numbers
                values = pd.to_numeric(values)
            columns[name] = values.astype(_PANDAS[column.type])
        except (ValueError, TypeError) as error:
            raise InputError(f"not {column.type.__name__}: {error}", file=path, field=name) from error
    others = {name: frame[name] for name in frame.columns if name not in SCHEMA}
    return pd.DataFrame(columns | others)
