-- What devices declare, and what they declared before (declared is false).
CREATE TABLE introspection (
    device BIGINT NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    major BIGINT NOT NULL,
    minor BIGINT NOT NULL,
    declared BOOLEAN NOT NULL,
    PRIMARY KEY (device, name, major)
);
CREATE INDEX introspection_declared ON introspection (name, major) WHERE declared;
