"""Signed bundles: their documents and archives, the acceptance in nine steps, and the trust store.

Start with ``acceptance.py``, which lists the nine steps, then ``document.py`` and ``descriptor.py`` for the documents.
``pack.py``, ``bundle_files.py``, ``signed_documents.py`` and ``oci_transfer.py`` implement the commands.

Pure: the documents (``descriptor``, ``manifest``, ``attestation``, ``pointer``, ``log_documents``), the decisions
(``acceptance``, ``evidence``, ``trust``, ``trust_store``) and ``bundle_pin``. Files and network are only touched by the
commands, ``source_tree``, ``bundle_archive``, ``environment`` and ``trust_files``. Does not import ``registry``.
"""
