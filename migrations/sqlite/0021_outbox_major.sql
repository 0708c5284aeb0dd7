-- A message is for one major of its interface; NULL: written before this was kept.
ALTER TABLE outbox ADD COLUMN major INTEGER;
