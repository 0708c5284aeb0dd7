-- Nothing to do here: a COMMIT of an embedded database is never in doubt. PostgreSQL keeps a marker, by
-- which a node that lost its connection during COMMIT learns what became of it.
SELECT 1;
