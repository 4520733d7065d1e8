-- The package URL or address of a server; empty for a program of the machine.
ALTER TABLE device_server ADD COLUMN runs TEXT NOT NULL DEFAULT '';
