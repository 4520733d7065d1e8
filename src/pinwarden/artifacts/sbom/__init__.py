"""A bill of materials as CycloneDX or SPDX. Pure."""
