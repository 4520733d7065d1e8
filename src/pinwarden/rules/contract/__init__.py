"""Judgement over contracts: checked against a lockfile, compared, weighed, attested."""
