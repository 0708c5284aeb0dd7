-- Who did what.
CREATE TABLE audit (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    occurred_at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    object TEXT NOT NULL
);
CREATE INDEX audit_occurred_at ON audit (occurred_at);
