"""Signed bundles: documents, archives, the nine-step acceptance, and the trust store.

Start with ``descriptor.py`` and ``manifest.py`` (what a bundle is), ``archive/`` (CAR and tar+zstd) and
``acceptance/plan.py`` (the nine steps of verifier rulebook v0.1.1). Documents and ``acceptance/`` are pure.
Knows nothing of registries beyond the pointers they sign.
"""
