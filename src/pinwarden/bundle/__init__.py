"""Signed bundles: their documents and archives, the acceptance in nine steps, and the trust store.

Start with ``acceptance.py``, which lists the nine steps, then ``bundle_documents.py`` (descriptor and manifest) and
``log_documents.py`` (pointers and the log). ``pack.py``, ``bundle_files.py``, ``signed_documents.py`` and
``oci_transfer.py`` implement the commands.

Pure: the documents (also ``document`` and ``attestation``), the decisions (``acceptance``, ``evidence``, ``trust``),
``bundle_archive`` and ``bundle_pin``. Files and network are only touched by the commands, ``source_tree``,
``environment`` and ``trust_files``. Does not import ``registry``.
"""
