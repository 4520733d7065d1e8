"""One file per use: adapters, rules and documents make a report. No printing, no exiting."""
