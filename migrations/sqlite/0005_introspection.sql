-- What devices declare, and what they declared before (declared is false).
CREATE TABLE introspection (
    device INTEGER NOT NULL,
    name TEXT NOT NULL,
    major INTEGER NOT NULL,
    minor INTEGER NOT NULL,
    declared BOOLEAN NOT NULL,
    PRIMARY KEY (device, name, major)
) WITHOUT ROWID;
CREATE INDEX introspection_declared ON introspection (name, major) WHERE declared;
