"""The census: observe every server of a source, again and again, on one machine or many.

Start with ``census.py``, which starts a run, resumes it, and works on it. ``sources.py`` lists servers,
``examination.py`` is the job for one server, ``store.py`` writes its result, and ``queries.py`` answers questions.

``job_queue.py`` has the loop of a worker and the queue on SQLite; ``postgres_queue.py`` is the queue on PostgreSQL.
A result is written in the transaction that finishes its job, so a server has exactly one result in a run. Servers are
verified, probed, compared and scanned by the functions that ``prove``, ``ci --live`` and ``scan`` use.

Must not import ``gateway`` or ``cli``. Nothing that starts with ``run`` or ``ci`` imports this package.
"""
