-- The last batch that was committed, by which a node that lost its connection during COMMIT learns
-- what became of it.
CREATE TABLE commit_marker (
    lane BIGINT NOT NULL PRIMARY KEY,
    batch BIGINT NOT NULL
);
INSERT INTO commit_marker (lane, batch) VALUES (0, 0);
