-- Who did what.
CREATE TABLE audit (
    position BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    occurred_at BIGINT NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    object TEXT NOT NULL
);
CREATE INDEX audit_occurred_at ON audit (occurred_at);
