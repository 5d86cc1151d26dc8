-- Computed from events alone: `rebuild_index` drops and refills these tables.
CREATE TABLE call_index(
  call_id TEXT PRIMARY KEY,
  scope TEXT NOT NULL,
  key TEXT NOT NULL,
  occurrence INTEGER NOT NULL,
  generation INTEGER NOT NULL,
  epoch INTEGER,
  last_seq INTEGER NOT NULL,
  is_open INTEGER NOT NULL,
  is_in_flight INTEGER NOT NULL,
  is_unfinished INTEGER NOT NULL,
  lineage TEXT,
  run TEXT,
  served_pass INTEGER,
  is_unresolved INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
-- Not unique: claims are unique by rule (claims.py), but a receipt may witness a call beside one of the same identity.
CREATE INDEX call_identity ON call_index(scope, key, occurrence, generation);
CREATE INDEX call_by_key ON call_index(scope, key, last_seq);
CREATE INDEX call_open ON call_index(scope, key) WHERE is_open = 1;
CREATE INDEX call_by_lineage ON call_index(scope, lineage) WHERE lineage IS NOT NULL AND is_open = 1;
CREATE INDEX call_in_flight ON call_index(epoch) WHERE is_in_flight = 1;
CREATE INDEX call_unfinished ON call_index(call_id) WHERE is_unfinished = 1;
CREATE INDEX call_of_run ON call_index(run, call_id) WHERE run IS NOT NULL;
CREATE INDEX call_of_pass ON call_index(scope, key, served_pass, occurrence) WHERE served_pass IS NOT NULL;
CREATE INDEX call_open_in_pass ON call_index(scope, served_pass) WHERE served_pass IS NOT NULL AND is_open = 1;
CREATE INDEX call_unresolved ON call_index(run, call_id) WHERE run IS NOT NULL AND is_unresolved = 1;
CREATE TABLE pass_index(
  run TEXT NOT NULL,
  number INTEGER NOT NULL,
  opened_seq INTEGER NOT NULL,
  PRIMARY KEY(run, number)
) STRICT, WITHOUT ROWID;
