-- Format 1. See ../FORMAT.md; the reasons stand there.
CREATE TABLE event(
  seq INTEGER PRIMARY KEY,
  record TEXT NOT NULL,
  chain TEXT NOT NULL,
  -- The record's own `call`, for look-ups only; `doctor` and the verifier compare it. (A generated column would need
  -- json_extract, which trusted_schema=OFF forbids.)
  call_id TEXT
) STRICT;
CREATE INDEX event_by_call ON event(call_id, seq) WHERE call_id IS NOT NULL;
CREATE INDEX event_by_epoch ON event(seq) WHERE call_id IS NULL;

CREATE TABLE chunk(id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, frame BLOB NOT NULL) STRICT;
CREATE TABLE body(id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, size INTEGER NOT NULL, chunks BLOB NOT NULL) STRICT;

CREATE TRIGGER event_is_never_updated BEFORE UPDATE ON event BEGIN SELECT RAISE(ABORT, 'events are only added'); END;
CREATE TRIGGER event_is_never_deleted BEFORE DELETE ON event BEGIN SELECT RAISE(ABORT, 'events are only added'); END;
CREATE TRIGGER chunk_is_never_updated BEFORE UPDATE ON chunk BEGIN SELECT RAISE(ABORT, 'chunks are only added'); END;
CREATE TRIGGER body_is_never_updated BEFORE UPDATE ON body BEGIN SELECT RAISE(ABORT, 'bodies are only added'); END;
CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
