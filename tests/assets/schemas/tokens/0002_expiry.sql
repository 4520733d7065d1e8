-- When a token expires, what it may be used for, and the client's teams. NULL: never, for everything, none.
ALTER TABLE token ADD COLUMN expires_at TEXT;
ALTER TABLE token ADD COLUMN scopes TEXT;
ALTER TABLE token ADD COLUMN teams TEXT;
