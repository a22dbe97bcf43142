"""Tables of the journal, and its version.

One SQLite file per run. Rows of `groups`, `submissions`, `sequences`, `steps`, `outcomes`, `versions`, `probes`, `syncs` and `events`
stay for ever; bulk (`columns`, prompts, trainer log-probabilities, weight blobs) is pruned behind the oldest checkpoint,
except for the reservoir in `retained`.
"""

__all__ = ["ADDED_COLUMNS", "ADDED_TABLES", "SCHEMA", "SCHEMA_VERSION", "SUMS_SINCE"]

SCHEMA_VERSION = 2
SUMS_SINCE = 2
"""Schema version from which on rows have checksums. Columns that end in `sum` are those of `stores.sums`; which values they cover is said where they are read."""

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE run (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    run_id TEXT NOT NULL,
    request TEXT NOT NULL,              -- RunRequest as JSON
    trainer_epoch INTEGER NOT NULL,
    state INTEGER NOT NULL,             -- RunState
    committed_step INTEGER NOT NULL,
    pruned_step INTEGER NOT NULL,
    row_sum INTEGER
) STRICT;

CREATE TABLE groups (
    group_id TEXT PRIMARY KEY,
    purpose INTEGER NOT NULL,           -- Purpose
    ordinal INTEGER NOT NULL,
    group_size INTEGER NOT NULL,
    min_weight_version INTEGER NOT NULL,
    state INTEGER NOT NULL,             -- GroupState
    step INTEGER NOT NULL,              -- 0: not assigned
    attempts INTEGER NOT NULL,
    admitted_step INTEGER NOT NULL,     -- -1: never leased
    oldest_step INTEGER NOT NULL,       -- -1: no tokens
    stored INTEGER NOT NULL,
    row_sum INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX groups_by_state ON groups (purpose, state, ordinal, group_id);
CREATE INDEX groups_by_step ON groups (purpose, step, ordinal);

CREATE TABLE prompts (
    group_id TEXT PRIMARY KEY,
    prompt_token_ids BLOB NOT NULL,     -- int32, little-endian
    sampling TEXT NOT NULL,             -- SamplingParameters as JSON
    payload BLOB NOT NULL,              -- the trainer's own data
    row_sum INTEGER
) STRICT;

CREATE TABLE leases (
    lease_id TEXT PRIMARY KEY,
    group_id TEXT NOT NULL,
    worker_name TEXT NOT NULL,
    worker_epoch INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    min_weight_version INTEGER NOT NULL,
    sample_indices TEXT NOT NULL,       -- JSON array
    row_sum INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX leases_by_worker ON leases (worker_name);

CREATE TABLE submissions (
    submission_id INTEGER PRIMARY KEY,
    worker_name TEXT NOT NULL,
    worker_epoch INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    lease_id TEXT NOT NULL,
    group_id TEXT NOT NULL,
    backend TEXT NOT NULL,
    numerics_id TEXT NOT NULL,
    generation_seconds REAL NOT NULL,
    row_sum INTEGER,
    UNIQUE (worker_name, worker_epoch, sequence)
) STRICT;

CREATE TABLE sequences (
    group_id TEXT NOT NULL,
    sample_index INTEGER NOT NULL,
    submission_id INTEGER NOT NULL,
    position INTEGER NOT NULL,          -- in its submission
    length INTEGER NOT NULL,            -- tokens
    finish_reason INTEGER NOT NULL,     -- FinishReason
    oldest_version INTEGER NOT NULL,
    newest_version INTEGER NOT NULL,
    oldest_step INTEGER NOT NULL,
    newest_step INTEGER NOT NULL,
    PRIMARY KEY (group_id, sample_index)
) STRICT, WITHOUT ROWID;

CREATE TABLE columns (
    submission_id INTEGER PRIMARY KEY,
    group_id TEXT NOT NULL,
    token_ids BLOB NOT NULL,            -- int32, little-endian, all sequences one after another
    log_probs BLOB,                     -- float32
    action_mask BLOB,                   -- uint8
    version_spans BLOB NOT NULL,        -- int64: sample, start, end, weight version of each span
    expert_ids BLOB,                    -- int32
    expert_layers INTEGER,
    expert_top_k INTEGER,
    row_sum INTEGER
) STRICT;
CREATE INDEX columns_by_group ON columns (group_id);

CREATE TABLE retained (
    rank INTEGER PRIMARY KEY,
    group_id TEXT NOT NULL,
    sample_index INTEGER NOT NULL,
    token_ids BLOB NOT NULL,
    log_probs BLOB,
    action_mask BLOB,
    trainer_log_probs BLOB,
    row_sum INTEGER
) STRICT;
CREATE INDEX retained_by_group ON retained (group_id);

CREATE TABLE versions (
    version INTEGER PRIMARY KEY,
    step INTEGER NOT NULL,
    state_digest TEXT NOT NULL,
    abandoned INTEGER NOT NULL,
    pruned INTEGER NOT NULL,
    manifest TEXT NOT NULL,             -- WeightManifest as JSON
    row_sum INTEGER,
    manifest_sum INTEGER
) STRICT;

CREATE TABLE steps (
    commit_id INTEGER PRIMARY KEY,
    step INTEGER NOT NULL,
    trainer_epoch INTEGER NOT NULL,
    committed_at REAL NOT NULL,         -- seconds since the epoch
    abandoned INTEGER NOT NULL,
    row_sum INTEGER,
    outcomes_sum INTEGER,
    log_probs_sum INTEGER,
    log_probs BLOB                      -- float32, in the order of outcomes.position
) STRICT;
CREATE UNIQUE INDEX steps_that_count ON steps (step) WHERE abandoned = 0;

CREATE TABLE outcomes (
    commit_id INTEGER NOT NULL,
    position INTEGER NOT NULL,
    group_id TEXT NOT NULL,
    sample_index INTEGER NOT NULL,
    reward REAL NOT NULL,
    advantage REAL NOT NULL,
    log_importance_ratio REAL NOT NULL,
    coefficient REAL NOT NULL,
    mean_absolute_gap REAL NOT NULL,
    max_absolute_gap REAL NOT NULL,
    lag INTEGER NOT NULL,
    disposition INTEGER NOT NULL,       -- Disposition
    staleness_log_ratio REAL,
    chip_log_ratio REAL,
    PRIMARY KEY (commit_id, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX outcomes_by_sequence ON outcomes (group_id, sample_index);

CREATE TABLE workers (
    worker_name TEXT PRIMARY KEY,
    worker_epoch INTEGER NOT NULL,
    request TEXT NOT NULL,              -- JoinRequest as JSON
    state INTEGER NOT NULL,             -- WorkerState
    state_reason TEXT NOT NULL,
    completions INTEGER NOT NULL,
    last_probe TEXT,                    -- ProbeResult as JSON
    must_pass_probe INTEGER NOT NULL,
    draining INTEGER NOT NULL,
    former_boot_ids TEXT NOT NULL,      -- JSON array
    row_sum INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE probes (
    probe_id INTEGER PRIMARY KEY,
    worker_name TEXT NOT NULL,
    worker_epoch INTEGER NOT NULL,
    numerics_id TEXT NOT NULL,
    weight_version INTEGER NOT NULL,
    mean_absolute_difference REAL NOT NULL,
    max_absolute_difference REAL NOT NULL,
    mean_difference REAL NOT NULL,
    tokens INTEGER NOT NULL,
    accepted INTEGER NOT NULL,
    occurred_at REAL NOT NULL,
    log_probs BLOB,                     -- float32
    row_sum INTEGER
) STRICT;
CREATE INDEX probes_by_worker ON probes (worker_name);

CREATE TABLE events (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    occurred_at REAL NOT NULL,
    kind TEXT NOT NULL,
    worker_name TEXT NOT NULL,
    message TEXT NOT NULL
) STRICT;

CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
"""

ADDED_TABLES = """
CREATE TABLE IF NOT EXISTS scores (
    score_id TEXT PRIMARY KEY,
    worker_name TEXT NOT NULL,
    state INTEGER NOT NULL,             -- ScoreState
    submission TEXT UNIQUE,             -- worker name/epoch/sequence; NULL until there
    row TEXT NOT NULL,                  -- ScoreRow as JSON
    row_sum INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS scores_by_worker ON scores (worker_name, state);

CREATE TABLE IF NOT EXISTS syncs (
    sync_id INTEGER PRIMARY KEY,
    worker_name TEXT NOT NULL,
    worker_epoch INTEGER NOT NULL,
    weight_version INTEGER NOT NULL,
    occurred_at REAL NOT NULL,          -- seconds since the epoch, when the hub heard of it
    sync TEXT NOT NULL,                 -- WeightSync as JSON
    row_sum INTEGER,
    UNIQUE (worker_name, worker_epoch, weight_version)
) STRICT;

CREATE TABLE IF NOT EXISTS routes (     -- ways to a version besides the one in `versions`
    version INTEGER NOT NULL,
    base_version INTEGER NOT NULL,      -- 0: a full copy
    pruned INTEGER NOT NULL,
    manifest TEXT NOT NULL,             -- WeightManifest as JSON
    row_sum INTEGER,
    PRIMARY KEY (version, base_version)
) STRICT, WITHOUT ROWID;
"""
"""Tables that came after the first journals of this version: made whenever a hub opens one, so that older runs go on."""

ADDED_COLUMNS = {
    "run": ("row_sum",),
    "groups": ("row_sum",),
    "prompts": ("row_sum",),
    "leases": ("row_sum",),
    "submissions": ("row_sum",),
    "columns": ("row_sum",),
    "retained": ("row_sum",),
    "versions": ("row_sum", "manifest_sum"),
    "steps": ("row_sum", "outcomes_sum", "log_probs_sum"),
    "workers": ("row_sum",),
    "probes": ("row_sum",),
    "scores": ("row_sum",),
    "syncs": ("row_sum",),
    "routes": ("row_sum",),
}
"""Columns that journals of version 1 lack, by table; all of them hold integers or NULL."""
