"""Results on disk: the columns of a row, the journal of a run, its manifest, frames and raw samples.

Importing this package loads neither pandas nor pyarrow; functions that need them import them when called.
"""

from perfkit.files import replacing, write_text
from perfkit.results.frame import discard_frame, load_run, write_csv, write_frame
from perfkit.results.journal import Journal
from perfkit.results.manifest import (
    environment,
    git_revision,
    host_kind,
    kernels_digest,
    manifest_hash,
    read_manifest,
    utc_now,
    version,
    write_manifest,
)
from perfkit.results.rundir import default_run_dir, prepare_run_dir, read_samples, write_samples, writing
from perfkit.results.schema import (
    CHECKED,
    COLUMNS,
    FINISHED,
    INCOMPLETE,
    LIMITS,
    SCHEMA,
    SCHEMA_VERSION,
    SOURCES,
    STATUSES,
    STOP_REASONS,
    Column,
    check_row,
    clean,
    coerce,
    columns_table,
    dumps,
    empty_row,
    exit_code,
    make_row,
)

__all__ = [
    "CHECKED",
    "COLUMNS",
    "FINISHED",
    "INCOMPLETE",
    "LIMITS",
    "SCHEMA",
    "SCHEMA_VERSION",
    "SOURCES",
    "STATUSES",
    "STOP_REASONS",
    "Column",
    "Journal",
    "check_row",
    "clean",
    "coerce",
    "columns_table",
    "default_run_dir",
    "discard_frame",
    "dumps",
    "empty_row",
    "environment",
    "exit_code",
    "git_revision",
    "host_kind",
    "kernels_digest",
    "load_run",
    "make_row",
    "manifest_hash",
    "prepare_run_dir",
    "read_manifest",
    "read_samples",
    "replacing",
    "utc_now",
    "version",
    "write_csv",
    "write_frame",
    "write_manifest",
    "write_samples",
    "write_text",
    "writing",
]
