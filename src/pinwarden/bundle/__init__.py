"""Signed bundles: their documents and archives, the acceptance in nine steps, and the trust store.

Start with ``acceptance.py``, which lists the nine steps, then ``bundle_documents.py`` (descriptor and manifest) and
``log_documents.py`` (pointers and the log). ``pack.py``, ``bundle_files.py``, ``signed_documents.py`` and
``oci_transfer.py`` implement the commands. ``pack.py`` reads the folder with ``source_tree.py`` and the packages of a
Node server with ``node_modules.py``; those of a Python server come from ``project``.

Pure modules: ``bundle_documents``, ``log_documents``, ``document``, ``attestation``, ``acceptance``,
``trust``, ``bundle_archive`` and ``bundle_pin``. Only the commands, ``source_tree``, ``environment`` and
``trust_files`` use files or the network. This package must not import ``registry``.
"""
