"""Parity: probes, goldens, fingerprints, blame, and the verdict they lead to."""
