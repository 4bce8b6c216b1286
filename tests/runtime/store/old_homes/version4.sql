BEGIN TRANSACTION;
CREATE TABLE blobs (digest TEXT NOT NULL PRIMARY KEY, text TEXT NOT NULL, base TEXT, keep INTEGER, tail BLOB);
INSERT INTO "blobs" VALUES('44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a','{}',NULL,NULL,NULL);
INSERT INTO "blobs" VALUES('4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945','[]',NULL,NULL,NULL);
INSERT INTO "blobs" VALUES('58bf5b5478e5d1fb7441daeff9fd1ed60a4ad5fbfabc64715cd8608f3f59f6da','"done"',NULL,NULL,NULL);
CREATE TABLE writers (
    id TEXT NOT NULL PRIMARY KEY,
    batch INTEGER NOT NULL,
    at FLOAT NOT NULL
);
CREATE TABLE checkpoints (
    n INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    seq INTEGER NOT NULL,
    branch TEXT NOT NULL,
    snapshot_id TEXT NOT NULL,
    content_key TEXT NOT NULL,
    parents_json TEXT NOT NULL,
    created_at FLOAT NOT NULL,
    label TEXT NOT NULL
);
CREATE TABLE effects (
    n INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    key TEXT NOT NULL,
    step TEXT NOT NULL,
    branch TEXT NOT NULL,
    status TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    args_blob TEXT NOT NULL REFERENCES blobs (digest),
    result_blob TEXT REFERENCES blobs (digest),
    intended_at FLOAT NOT NULL,
    settled_at FLOAT,
    note TEXT NOT NULL,
    UNIQUE (run_id, key)
);
INSERT INTO "effects" VALUES(1,'old','k','s','root','done','i','4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945',NULL,1.0,NULL,'');
CREATE TABLE llm (
    n INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    seq INTEGER NOT NULL,
    key TEXT NOT NULL,
    op_id TEXT NOT NULL,
    branch TEXT NOT NULL,
    step_key TEXT,
    request_blob TEXT NOT NULL REFERENCES blobs (digest),
    request_digest TEXT NOT NULL,
    result_blob TEXT NOT NULL REFERENCES blobs (digest),
    result_digest TEXT NOT NULL,
    tags_json TEXT NOT NULL,
    reused_from TEXT,
    started_at FLOAT NOT NULL,
    ended_at FLOAT NOT NULL,
    UNIQUE (run_id, seq)
);
CREATE TABLE ops (
    n INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    seq INTEGER NOT NULL,
    key TEXT NOT NULL,
    op_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    branch TEXT NOT NULL,
    status TEXT NOT NULL,
    step TEXT,
    args_digest TEXT NOT NULL,
    result_blob TEXT REFERENCES blobs (digest),
    result_digest TEXT NOT NULL,
    snapshot_in TEXT,
    snapshot_out TEXT,
    lineage_key TEXT,
    reused_from TEXT,
    started_at FLOAT NOT NULL,
    ended_at FLOAT NOT NULL,
    summary TEXT NOT NULL,
    error TEXT,
    attrs_json TEXT NOT NULL,
    UNIQUE (run_id, seq)
);
INSERT INTO "ops" VALUES(1,'old',1,'root|o1|0','o1','RUN','root','done','s','d','58bf5b5478e5d1fb7441daeff9fd1ed60a4ad5fbfabc64715cd8608f3f59f6da','d',NULL,NULL,NULL,NULL,1.0,2.0,'it ýworked',NULL,'{}');
CREATE TABLE runs (
    n INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    workflow TEXT NOT NULL,
    frontend TEXT NOT NULL,
    workspace TEXT NOT NULL,
    base_snapshot TEXT NOT NULL,
    plan_blob TEXT NOT NULL REFERENCES blobs (digest),
    args_blob TEXT NOT NULL REFERENCES blobs (digest),
    settings_json TEXT NOT NULL,
    status TEXT NOT NULL,
    created_at FLOAT NOT NULL,
    updated_at FLOAT NOT NULL,
    deadline_s FLOAT,
    consumed_s FLOAT NOT NULL,
    result_blob TEXT REFERENCES blobs (digest),
    error TEXT,
    thread_id TEXT
);
INSERT INTO "runs" VALUES(1,'old','repair','a.py:repair','decorators','','base','44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a','4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945','{"sandbox": "copy"}','done',1.0,2.0,NULL,0.5,'58bf5b5478e5d1fb7441daeff9fd1ed60a4ad5fbfabc64715cd8608f3f59f6da',NULL,NULL);
CREATE INDEX ops_lineage ON ops (lineage_key);
CREATE INDEX ops_result_blob ON ops (result_blob);
CREATE INDEX llm_request_blob ON llm (request_blob);
CREATE INDEX llm_result_blob ON llm (result_blob);
CREATE INDEX checkpoints_run ON checkpoints (run_id);
CREATE INDEX effects_args_blob ON effects (args_blob);
CREATE INDEX effects_result_blob ON effects (result_blob);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('runs',1);
INSERT INTO "sqlite_sequence" VALUES('ops',1);
INSERT INTO "sqlite_sequence" VALUES('effects',1);
COMMIT;
PRAGMA user_version = 4;
